"""The states of a stream's machine and their transitions, the events it is fed, and the actions it orders.

Rows, positions and rewinds are fed as the commands `Rdata` (or `RdataRun`), `Position` and `Rewind`, a page
of missing facts as `MissedFacts`.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from synrepl.replication.follower.updates import MissedFacts
from synrepl.replication.strategies import FollowStrategy
from synrepl.wire.commands import Position, Rdata, Rewind
from synrepl.wire.rdata_runs import RdataRun


class Connected(msgspec.Struct, frozen=True):
    """A connection was opened. `decode_many` decodes rows of the server's release, and raises `RowError`."""

    strategy: FollowStrategy
    decode_many: Callable[[list[bytes]], list[Any]]


class Disconnected(msgspec.Struct, frozen=True):
    """The connection was lost. A busy subscriber may finish."""


class Stopped(msgspec.Struct, frozen=True):
    """The follower is stopped: subscribers and fetches are cancelled."""


class Applied(msgspec.Struct, frozen=True):
    """`Apply` is done."""


class Invalidated(msgspec.Struct, frozen=True):
    """`Invalidate` is done."""


class FetchFailed(msgspec.Struct, frozen=True):
    """`Fetch` failed."""

    error: Exception


class PauseOver(msgspec.Struct, frozen=True):
    """`Pause` is over."""


class Tick(msgspec.Struct, frozen=True):
    """The time of `Wake` has come."""


APPLIED: Final = Applied()

StreamEvent = (
    Rdata
    | RdataRun
    | Position
    | Rewind
    | MissedFacts
    | Connected
    | Disconnected
    | Stopped
    | Applied
    | Invalidated
    | FetchFailed
    | PauseOver
    | Tick
)


class Apply(msgspec.Struct, frozen=True):
    """Apply facts of `PendingFacts.take`, up to and including the first that needs time. Then: `Applied`.

    Or batches of `take_batches`.
    """


class Invalidate(msgspec.Struct, frozen=True):
    """Drop all cache entries that the stream can invalidate. Then: `Invalidated`."""


class Fetch(msgspec.Struct, frozen=True):
    """Fetch facts of `writer` with ``after < token <= upto``. Then: `MissedFacts` or `FetchFailed`."""

    writer: str
    after: int
    upto: int


class Pause(msgspec.Struct, frozen=True):
    """Wait for some seconds. Then: `PauseOver`."""

    seconds: float


class Cancel(msgspec.Struct, frozen=True):
    """Cancel the work that was ordered last; the event that ends it must not be fed."""


class Wake(msgspec.Struct, frozen=True):
    """Feed a `Tick` after some seconds, unless the connection is lost before. The stream is not blocked."""

    seconds: float


class Reported(enum.Enum):
    """What a `Report` is about; the value says it in words."""

    ADVANCED = "positions moved"
    POSITION = "a POSITION was processed: the writer is at the token"
    BEHIND = "the writer's position is lower than what was applied, in a log that is said to be the same"
    REWOUND = "the writer's position is lower than before: its facts beyond the token are lost"
    RESTARTED = "the writer restarted the stream: its earlier facts are void"
    GAP_DETECTED = "facts are missing"
    GAP_REPAIRED = "no facts are missing any more"
    GAP_LOST = "the missing facts cannot be fetched; the stream continues without them"
    FACT_LOST = "the fact cannot be decoded, or its source has lost it; the stream continues without it"
    ERROR = "an error that the operator must know"
    FULL = "the queue is full: stop reading from the server"
    EMPTY = "the queue is empty again: read from the server"


class Report(msgspec.Struct, frozen=True):
    """Tell the follower `about` an event of this stream. `rows` are those of a fact that is lost."""

    about: Reported
    writer: str = ""
    token: int = 0
    error: Exception | None = None
    rows: list[bytes] = []


ADVANCED: Final = Report(Reported.ADVANCED)
APPLY: Final = Apply()

Action = Apply | Invalidate | Fetch | Pause | Cancel | Wake | Report
"""Of the actions that one event orders, only the last one may be followed by an event (`Wake` aside)."""


class StreamState(enum.Enum):
    """The state of a stream; the value says it in words."""

    DISCONNECTED = "there is no connection"
    LIVE = "rows and positions are processed as they arrive"
    APPLYING = "a subscriber or a cache is busy with a fact, or failed and is called again"
    INVALIDATING = "everything that the skipped facts could invalidate is dropped"
    FETCHING = "a page of missing facts was requested"
    BACKING_OFF = "a request failed and is repeated after a pause"

    __hash__ = object.__hash__  # `Enum.__hash__` is slower than all other work with a state


_D, _L, _A, _I, _F, _B = StreamState

_READY: Final = frozenset({_L, _A, _I, _F})
"""The states that may follow the end of a block: live, or blocked again by the next fact or gap."""


def _queued(state: StreamState) -> dict[type, frozenset[StreamState]]:
    """Commands that arrive while the stream is blocked are queued."""
    same = frozenset({state})
    return {
        Rdata: same,
        RdataRun: same,
        Position: same,
        Rewind: same,
        Tick: same,
        Stopped: frozenset({_D}),
    }


TRANSITIONS: Final[Mapping[StreamState, Mapping[type, frozenset[StreamState]]]] = {
    # Commands that arrive after the end of a connection are dropped: the next connection repeats them.
    _D: _queued(_D) | {Connected: frozenset({_L}), Disconnected: frozenset({_D})},
    _L: {
        Rdata: _READY,
        RdataRun: _READY,
        Position: _READY,
        Rewind: frozenset({_L, _I}),
        Tick: frozenset({_L, _A}),
        Connected: frozenset({_L}),
        Disconnected: frozenset({_D}),
        Stopped: frozenset({_D}),
    },
    # A busy subscriber may finish after a disconnect, and during the next connection.
    _A: _queued(_A) | {Applied: _READY | {_D}, Connected: frozenset({_A}), Disconnected: frozenset({_A})},
    _I: _queued(_I) | {Invalidated: _READY | {_D}, Connected: frozenset({_I}), Disconnected: frozenset({_I})},
    _F: _queued(_F) | {MissedFacts: _READY | {_B}, FetchFailed: _READY | {_B}, Disconnected: frozenset({_D})},
    _B: _queued(_B) | {PauseOver: frozenset({_F}), Disconnected: frozenset({_D})},
}
"""The events that are possible in each state, and the states that may follow. Any other event is an error.

Several states may follow an event after which the stream processes its queue.
"""
