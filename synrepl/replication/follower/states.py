"""The states in which a stream is followed, and the transitions between them."""

import enum
from collections.abc import Mapping
from typing import Final

from synrepl.replication.follower.catchup import MissedFacts
from synrepl.replication.follower.events import (
    Applied,
    Connected,
    Disconnected,
    FetchFailed,
    Invalidated,
    PauseOver,
    Stopped,
    Tick,
)
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["TRANSITIONS", "StreamState"]


class StreamState(enum.Enum):
    """What a stream waits for; the value says it in words."""

    DISCONNECTED = "there is no connection"
    LIVE = "rows and positions are processed as they arrive"
    APPLYING = "a subscriber or a cache is busy with a fact, or failed and is called again"
    INVALIDATING = "everything that the skipped facts could invalidate is dropped"
    FETCHING = "a page of missing facts was requested"
    BACKING_OFF = "a request failed and is repeated after a pause"

    __hash__ = object.__hash__  # that of `Enum` costs more than all else that is done with a state


_D, _L, _A, _I, _F, _B = StreamState

_READY: Final = frozenset({_L, _A, _I, _F})
"""Where a stream can be once nothing blocks it: live, or at the next thing that blocks it."""


def _queued(state: StreamState) -> dict[type, frozenset[StreamState]]:
    """Commands that arrive while the stream is blocked are queued."""
    same = frozenset({state})
    return {Rdata: same, RdataRun: same, Position: same, Tick: same, Stopped: frozenset({_D})}


TRANSITIONS: Final[Mapping[StreamState, Mapping[type, frozenset[StreamState]]]] = {
    # What arrives after the end of a connection is dropped: the next connection brings it again.
    _D: _queued(_D) | {Connected: frozenset({_L}), Disconnected: frozenset({_D})},
    _L: {
        Rdata: _READY,
        RdataRun: _READY,
        Position: _READY,
        Tick: frozenset({_L, _A}),
        Connected: frozenset({_L}),
        Disconnected: frozenset({_D}),
        Stopped: frozenset({_D}),
    },
    # A busy subscriber may finish after a disconnect, and during the next connection.
    _A: _queued(_A)
    | {
        Applied: _READY | {_D},
        Connected: frozenset({_A}),
        Disconnected: frozenset({_A}),
    },
    _I: _queued(_I)
    | {
        Invalidated: _READY | {_D},
        Connected: frozenset({_I}),
        Disconnected: frozenset({_I}),
    },
    _F: _queued(_F)
    | {
        MissedFacts: _READY | {_B},
        FetchFailed: _READY | {_B},
        Disconnected: frozenset({_D}),
    },
    _B: _queued(_B) | {PauseOver: frozenset({_F}), Disconnected: frozenset({_D})},
}
"""The events that are possible in each state, and the states that may follow. Any other event is an error.

More than one state follows where the stream then processes what was queued.
"""
