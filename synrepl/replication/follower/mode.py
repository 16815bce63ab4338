"""Mode: what a POSITION means on one connection, and what a stream remembers between connections."""

import enum
from collections.abc import Callable, Sequence

import msgspec

from synrepl.replication.follower.order import Order, RecentFacts
from synrepl.replication.follower.positions import AppliedPositions
from synrepl.replication.follower.updates import RawFact
from synrepl.wire.commands import Position

__all__ = ["ApplyPolicy", "Judgement", "Mode", "StreamHistory", "Verdict"]


class ApplyPolicy(msgspec.Struct, frozen=True):
    """How a stream is followed.

    `earliest`: a new writer is followed from its first fact. `is_kept`: facts are appended to a log, which
    does not need its own facts again when a writer is rewound. `resumes`: that log followed this channel
    before, so a stream without positions is a new one. `external_position` returns the token up to which
    another source has applied a writer's facts in order; -1 if none has.
    """

    ordered: bool
    monotonic: bool
    earliest: bool
    descends: bool = False
    is_kept: bool = False
    resumes: bool = False
    external_position: Callable[[str], int] | None = None


class StreamHistory:
    """What is known about one stream over all its connections.

    `policy`: how it is followed. `positions`: how far it is applied. `recent`: facts to deduplicate.
    `has_started`: a POSITION was processed. `is_out_of_order`: the server was seen to send later facts before
    earlier ones, as real masters do. `was_disconnected`: this is not the first connection. `announced`: the
    last POSITION of each writer whose rows arrive ahead of it; all earlier facts were applied.
    """

    def __init__(self, policy: ApplyPolicy, positions: AppliedPositions) -> None:
        self.policy = policy
        self.positions = positions
        self.recent = RecentFacts()
        self.has_started = bool(positions.tokens)
        self.is_out_of_order = False
        self.was_disconnected = False
        self.announced: dict[str, int] = {}
        # The POSITION being processed. If it is not completed, the next one covers it.
        self.announcing: dict[str, int] = {}

    def position_unchecked(self, writer: str) -> None:
        """Late facts before the writer's POSITION could not be fetched: the next POSITION covers them."""
        self.announcing.pop(writer, None)

    def position_done(self, writer: str) -> None:
        """A POSITION of the writer was processed."""
        self.has_started = True
        if writer in self.announcing:
            token = self.announcing.pop(writer)
            self.announced[writer] = max(token, self.announced.get(writer, token))


class Verdict(enum.Enum):
    """What a POSITION shows; the value says it in words."""

    CERTAIN = "nothing is missing: the position advances"
    UNCERTAIN = "nothing is known to be missing, but facts may have been: the position advances over them"
    GAP = "facts are missing: they are fetched"
    RECHECK = "late facts may have been missed: the last facts are fetched again"
    REWOUND = "the writer lost facts, and so does the log: the position falls"
    RESTARTED = "the writer begins again: all its facts are fetched"
    STALE = "it was sent before rows that have arrived: nothing changes"


class Judgement(msgspec.Struct, frozen=True):
    """A `verdict` on a POSITION, and the `token` to reach.

    `after`: where to fetch from. `is_certain`: no fact at or below `after` is missing. `is_rewound`: the
    writer's position fell. `void_after`: facts after this token are void, so that equal ones are new.
    """

    verdict: Verdict
    token: int
    after: int = 0
    is_certain: bool = False
    is_rewound: bool = False
    void_after: int | None = None


class Mode:
    """How one stream is followed on one connection.

    `order`: the order of its facts. `pushes`: the server pushes missed facts, and can only be paused;
    otherwise they can be fetched. `collects_rows`: rows are given to `collect`; otherwise each that is not
    part of a batch is a fact that can be applied now. `ready`: the writers of which rows can be applied.
    """

    pushes = False

    def __init__(self, history: StreamHistory, order: Order, *, collects_rows: bool = False) -> None:
        self.order = order
        self.collects_rows = collects_rows
        self.ready: set[str] = set()
        self._history = history
        self._policy = history.policy
        self._positions = history.positions

    @property
    def in_backlog(self) -> bool:
        """Whether the server still pushes what it had before this connection."""
        return False

    @property
    def collects(self) -> bool:
        """Whether facts arrived that are applied only when more has arrived, or after a while."""
        return False

    def collect(self, writer: str, token: int, rows: list[bytes]) -> Sequence[RawFact]:
        """Take rows. Returns the facts that can be applied now."""
        raise NotImplementedError

    def flush(self, writer: str) -> Sequence[RawFact]:
        """The facts that are complete because the writer announces a POSITION."""
        return ()

    def quiet_facts(self) -> Sequence[RawFact]:
        """The facts that are complete because nothing followed them for a while."""
        return ()

    def accepts_writer(self, writer: str) -> bool:
        """Whether rows of a writer can be applied that is not `ready`; it is then."""
        raise NotImplementedError

    def announce(self, writer: str) -> bool:
        """A POSITION of this writer arrived. Returns whether it is the first one on this connection."""
        raise NotImplementedError

    def judge(self, command: Position, *, is_first: bool) -> Judgement:
        """What a POSITION shows, after the facts before it were applied."""
        raise NotImplementedError

    def _is_certain(self, command: Position, *, is_first: bool) -> bool:
        """Whether all earlier facts of the writer were applied, so that this POSITION can be trusted.

        False for an unknown writer: the facts it wrote since our caches were filled are unknown. False on the
        first POSITION of a connection if tokens can go back: between two connections they may have gone back
        and grown again. False if the master sends facts out of order (such as 211 before 206), because the
        disconnect may have come between two of them.
        """
        if command.instance not in self._positions.tokens:
            return False
        return not is_first or (self._policy.monotonic and not self._history.is_out_of_order)
