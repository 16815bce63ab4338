"""What is known about one stream over all its connections: positions, recent facts, and their order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from synrepl.replication.follower.updates import RawFact


class Order(msgspec.Struct, frozen=True):
    """The order of a stream's facts on one connection.

    `is_exact`: a fact above the position is new, and a position includes every earlier fact. Otherwise only a
    POSITION, or the end of a fetch, shows that earlier facts are included. `has_late_facts`: a fact at or
    below the position is new, too, unless it is among `RecentFacts`. `restarts`: a late fact lowers the
    position, unless it was fetched.
    """

    is_exact: bool
    has_late_facts: bool
    restarts: bool = False


ORDERED: Final = Order(is_exact=True, has_late_facts=False)
"""Tokens ascend: a fact at or below the position is a repetition."""

OVERTAKING: Final = Order(is_exact=True, has_late_facts=True)
"""Tokens of each writer ascend, but the rows name no writer, so that writers overtake each other."""

UNORDERED: Final = Order(is_exact=False, has_late_facts=True)
"""Facts may arrive after facts with higher tokens, and more than once."""

RESTARTING: Final = Order(is_exact=False, has_late_facts=True, restarts=True)
"""Tokens begin again when the writer restarts, perhaps before any POSITION shows it."""

REMEMBERED: Final = 10_000
"""The largest number of facts in `RecentFacts`. A real master repeats a few dozen."""


class RecentFacts:
    """The most recent facts of one stream, by writer, token and rows."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], None] = {}

    def add_if_new(self, writer: str, token: int, rows: Sequence[bytes]) -> bool:
        """Remember this fact; return False if it was remembered already."""
        key = (writer, token, hash(tuple(rows)))
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True

    def forget_beyond(self, token: int) -> None:
        """Forget facts beyond this token: the stream was rewound, and equal facts are new ones."""
        self._seen = {key: None for key in self._seen if key[1] <= token}


QUIET_SECONDS: Final = 0.5
"""A burst ends when its writer has been quiet this long. Real masters send a burst at once."""

MAX_HELD: Final = 10_000
"""The number of buffered facts of one writer at which they are applied before the burst ends."""


class ReorderBuffer:
    """Buffers the facts of one stream, by writer, until a burst of them ends.

    Tokens of a burst descend: advancing the position with the first, highest one would claim the facts still
    to come, and they would never be fetched if the connection were lost. A burst ends with POSITION, or when
    its writer is quiet for a while. `seconds` returns the time.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._facts: dict[str, list[RawFact]] = {}
        self._last_added: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._facts)

    def add(self, writer: str, token: int, rows: list[bytes]) -> list[RawFact]:
        """Buffer a fact. Returns the writer's facts, sorted, if there are `MAX_HELD`; else none."""
        facts = self._facts.setdefault(writer, [])
        facts.append((writer, token, rows))
        self._last_added[writer] = self._seconds()
        return self.pop(writer) if len(facts) >= MAX_HELD else []

    def pop(self, writer: str) -> list[RawFact]:
        """Remove all facts of this writer and return them sorted by token."""
        self._last_added.pop(writer, None)
        return sorted(self._facts.pop(writer, ()), key=lambda fact: fact[1])

    def pop_quiet(self) -> list[RawFact]:
        """Remove and return the facts of the writers whose bursts have ended."""
        quiet_since = self._seconds() - QUIET_SECONDS
        quiet = [writer for writer, last_added in self._last_added.items() if last_added <= quiet_since]
        return [fact for writer in quiet for fact in self.pop(writer)]


class PositionStep(msgspec.Struct, frozen=True):
    """Moves the position of `writer` to `token`, once the facts up to it are applied or skipped.

    `is_position`: this ends the processing of a POSITION.
    """

    writer: str
    token: int
    is_position: bool = False


class AppliedPositions:
    """The applied position of each writer of one stream: facts up to that token were applied or skipped.

    The only owner of these tokens; everything else reads `tokens`. They move in two ways:

    * `advance`: a fact was applied and its caches were invalidated; or nothing up to a POSITION is missing;
      or facts were skipped or the writer fell back, and everything that this could invalidate was dropped
      first; or another source applied the facts (such a follower has no caches);
    * `rewind`: the connection was lost during a push of unordered facts, whose positions were held back.

    `writable` are the same tokens, for those who advance them at every row: a call would cost too much.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.writable = dict(tokens)
        self.tokens: Mapping[str, int] = self.writable
        self._held: dict[str, int] | None = None

    def advance(self, writer: str, token: int) -> None:
        """Move the position of a writer."""
        self.writable[writer] = token

    @property
    def reported(self) -> Mapping[str, int]:
        """The positions that may be reported as applied."""
        return self.tokens if self._held is None else self._held

    def hold_back(self) -> None:
        """Report the present positions until `release` or `rewind`: a later token proves no earlier facts."""
        self._held = dict(self.writable)

    def release(self) -> None:
        """Report the positions as they move."""
        self._held = None

    def rewind(self) -> None:
        """Go back to the positions held back, if any: the next connection continues from there.

        `RecentFacts` recognizes the facts that were applied since then.
        """
        if self._held is not None:
            self.writable.clear()
            self.writable.update(self._held)
            self._held = None


class ApplyPolicy(msgspec.Struct, frozen=True):
    """How a stream is followed. `ordered`, `monotonic`, `descends` and `ephemeral` are those of the `Stream`.

    `earliest`: a new writer is followed from its first fact. `is_kept`: facts are appended to a log, which
    does not need its own facts again when a writer is rewound. `resumes`: that log has positions already, so
    a stream without any is new. `external_position` returns the token up to which another source has applied
    a writer's facts in order; -1 if none has.
    """

    ordered: bool
    monotonic: bool
    earliest: bool
    descends: bool = False
    ephemeral: bool = False
    is_kept: bool = False
    resumes: bool = False
    external_position: Callable[[str], int] | None = None


class StreamHistory:
    """What is known about one stream over all its connections.

    `policy`: how it is followed. `positions`: how far it is applied. `recent`: facts to deduplicate.
    `has_started`: a POSITION was processed, in this run or a saved one. `is_out_of_order`: the server sent
    later facts before earlier ones, as real masters do. `was_disconnected`: a connection was lost before.
    `announced`: the highest POSITION of each writer whose rows arrive ahead of POSITION; all facts up to it
    were applied, or have no source. `has_caches`: the stream invalidates caches. `is_compared`: the server
    of this connection has said which facts are lost (REWIND, EPOCH), so that a lower POSITION shows none.
    """

    def __init__(self, policy: ApplyPolicy, positions: AppliedPositions) -> None:
        self.policy = policy
        self.positions = positions
        self.recent = RecentFacts()
        self.has_started = bool(positions.tokens)
        self.is_out_of_order = False
        self.was_disconnected = False
        self.has_caches = False
        self.is_compared = False
        self.announced: dict[str, int] = {}
        # The POSITION of each writer that is being processed. If cut off, the next POSITION covers it.
        self.announcing: dict[str, int] = {}

    def position_done(self, writer: str) -> None:
        """Record that a POSITION of the writer was processed."""
        self.has_started = True
        if writer in self.announcing:
            token = self.announcing.pop(writer)
            self.announced[writer] = max(token, self.announced.get(writer, token))
