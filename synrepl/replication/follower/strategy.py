"""How a follower follows, by release: the one table that decides it.

The other end of `serving`: before 1.13 a follower asks for each stream from a token and is pushed what it
missed; from 1.13 on it asks where all streams stand and pulls what it missed.
"""

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from synrepl.wire.commands import Replicate
from synrepl.wire.dialect import Dialect, Span, span

__all__ = ["SHARED", "FollowStrategy", "following"]

_PUSHED_OUT_OF_ORDER: Final = frozenset(
    # What real masters of that age send with tokens that go down.
    {"account_data", "tag_account_data", "presence", "federation"}
)

_OPTIONAL: Final = frozenset(
    # Masters that send federation traffic themselves do not have it, and close on who asks for it.
    {"federation"}
)


class FollowStrategy(msgspec.Struct, frozen=True):
    """One way of following.

    `pushed`: the server pushes what was missed, and ends it with POSITION. `shared`: there is no server, but
    a channel on which every writer tells its own facts, and answers REPLICATE for itself.
    """

    pushed: bool
    shared: bool = False

    def requests(
        self,
        streams: Collection[str],
        *,
        everything: bool,
        token: Callable[[str], int | None],
        earliest: bool,
    ) -> list[Replicate]:
        """What to ask on connecting.

        `token` gives the place to go on from in a stream, None if there is none yet. `everything`: whatever
        the server has is wanted, and naming a stream that it does not have would close the connection.
        """
        if not self.pushed:
            return [Replicate()]
        known = {name: at for name in streams if (at := token(name)) is not None}
        start = 0 if earliest else None
        if everything and not known:
            return [Replicate(stream="ALL", token=start)]
        names = [name for name in streams if not everything or name in known or name not in _OPTIONAL]
        return [Replicate(stream=name, token=known.get(name, start)) for name in names]

    def keeps_order(self, stream: str, ordered: bool) -> bool:
        """Whether a token that is not beyond the last one must be a repetition."""
        return ordered and not (self.pushed and stream in _PUSHED_OUT_OF_ORDER)


_TABLE: Final[tuple[tuple[Span, FollowStrategy], ...]] = (
    (span(until="1.13"), FollowStrategy(pushed=True)),
    (span(since="1.13"), FollowStrategy(pushed=False)),
)


SHARED: Final = FollowStrategy(pushed=False, shared=True)
"""On a broker, whatever the release."""


def following(dialect: Dialect) -> FollowStrategy:
    """How a server of this release is followed."""
    return next(way for releases, way in _TABLE if dialect.release in releases)
