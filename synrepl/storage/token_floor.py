"""Token floor: after a restore no token is given that the lost history may have given.

A restored log is older than what its readers have seen. Those that know epochs and digests are told so. A
follower on the line protocol knows tokens alone: it takes a fact whose token it has passed for one that it
has, and would skip everything until the restored log has caught up with it. So a restore notes a floor, and
each token that the daemon gives from then on is above that. The tokens of a homeserver stay as they are: it
gives them itself, and its own restore decides about them.

One floor serves all streams: also one that the lost history has begun, and the restored log does not know.

It is above what the backup knows by a margin, and grows with the clock, faster than any daemon gives tokens:
whoever restores the same backup again, as the first time was not what was wanted, must not give the tokens
that the first restored log has given meanwhile, of which the backup knows nothing.
"""

from collections.abc import Iterable
from typing import Final

from synrepl.base.notes import Notes

MARGIN: Final = 1_000_000_000
"""How many tokens of one stream the lost history may have given after the last one that is known."""

TOKENS_PER_MS: Final = 1_000
"""The floor grows by so many for each millisecond since 1970."""

HIGHEST_BY_CLOCK: Final = 2**52
"""The highest floor by the clock, which is that of the year 2112. Tokens up to 2**53 are exact everywhere."""

HIGHEST: Final = 2**62
"""The highest floor: tokens of 64 bits must be left above it."""


def floor_above(tokens: Iterable[int], seconds: float) -> int:
    """Return the floor of a log that is restored at this time.

    These tokens, and earlier floors, are known of the history that is lost.
    """
    by_clock = min(int(seconds * 1000) * TOKENS_PER_MS, HIGHEST_BY_CLOCK)
    return min(max(max(tokens, default=0) + MARGIN, by_clock), HIGHEST)


def floor_of(notes: Notes) -> int:
    """Return the floor that a log has noted; 0 without one."""
    return int(notes.get("floor", "0"))
