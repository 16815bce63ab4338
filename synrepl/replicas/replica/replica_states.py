"""States of a replica: what it goes through with its upstreams, as a table.

A replica tries one upstream after another, for ever: it connects, joins if it has no copy that the upstream
can continue, subscribes, and follows until the connection fails. Two things end this circle. An operator
turns it off, by a promotion or at the end of the daemon. Or an upstream shows that this copy has facts which
no other copy has: then the replica is stopped, because each way on gives up facts, and that is for an
operator to decide (or for a setting, which was decided before).

A refusal is therefore not the same as a lost connection, even though a retry follows both: what was refused
stays to be read until the next attempt, and one that says that the histories differ stops the replica.
"""

import enum
from collections.abc import Hashable, Mapping
from typing import Final

from synrepl.replication.machine import NamedState, Transitions


class ReplicaState(NamedState):
    """What a replica does. Operators see the words."""

    CONNECTING = "connecting", "connecting to its upstream"
    READY = "ready", "connected; the handshake is complete"
    SNAPSHOT = "snapshot", "joining: receiving the snapshot"
    MEANWHILE = "meanwhile", "joining: receiving the facts committed since the snapshot"
    ADOPTING = "adopting", "joining: replacing the old copy with the complete new one"
    CATCHING_UP = "catching up", "receiving missing facts"
    LIVE = "live", "up to date; receiving new facts as they are committed"
    DISCONNECTED = "disconnected", "disconnected from its upstream; will retry"
    REFUSED = "refused", "refused by its upstream for now; will retry"
    STOPPED = "stopped", "its upstream cannot serve this copy: an operator must decide"
    OFF = "off", "follows no upstream"

    @property
    def is_joining(self) -> bool:
        """Whether a copy is being received."""
        return self in (ReplicaState.SNAPSHOT, ReplicaState.MEANWHILE, ReplicaState.ADOPTING)

    @property
    def is_following(self) -> bool:
        """Whether the upstream has accepted the subscription, and the connection is up."""
        return self in (ReplicaState.CATCHING_UP, ReplicaState.LIVE)


class ReplicaEvent(enum.Enum):
    """What happens to a replica."""

    CONNECT = "it tries an upstream"
    WELCOME = "the handshake is complete"
    SNAPSHOT = "a snapshot, or a part of it, was received"
    MEANWHILE = "the snapshot is complete, or facts that were committed since were received"
    COPIED = "the copy is complete"
    SUBSCRIBED = "the upstream has accepted the subscription"
    CAUGHT_UP = "everything that the upstream has was received"
    FAIL = "the connection, or the attempt to connect, has failed"
    REFUSE = "the upstream has refused"
    DIVERGE = "the refusal says that this copy has facts that the upstream lacks"
    STOP = "it is turned off"


_Events = Mapping[Hashable, frozenset[ReplicaState]]

_STOP: Final[_Events] = {ReplicaEvent.STOP: frozenset({ReplicaState.OFF})}

_TRYING: Final[_Events] = {
    ReplicaEvent.FAIL: frozenset({ReplicaState.DISCONNECTED}),
    ReplicaEvent.REFUSE: frozenset({ReplicaState.REFUSED}),
    **_STOP,
}
"""An attempt is under way, and can fail."""

_RESTING: Final[_Events] = {ReplicaEvent.CONNECT: frozenset({ReplicaState.CONNECTING}), **_STOP}

TRANSITIONS: Final[Transitions[ReplicaState]] = {
    ReplicaState.CONNECTING: {ReplicaEvent.WELCOME: frozenset({ReplicaState.READY}), **_TRYING},
    ReplicaState.READY: {
        ReplicaEvent.SNAPSHOT: frozenset({ReplicaState.SNAPSHOT}),
        # The snapshot was received by an earlier attempt.
        ReplicaEvent.MEANWHILE: frozenset({ReplicaState.MEANWHILE}),
        ReplicaEvent.SUBSCRIBED: frozenset({ReplicaState.CATCHING_UP}),
        **_TRYING,
    },
    ReplicaState.SNAPSHOT: {
        ReplicaEvent.SNAPSHOT: frozenset({ReplicaState.SNAPSHOT}),
        ReplicaEvent.MEANWHILE: frozenset({ReplicaState.MEANWHILE}),
        **_TRYING,
    },
    ReplicaState.MEANWHILE: {
        ReplicaEvent.MEANWHILE: frozenset({ReplicaState.MEANWHILE}),
        ReplicaEvent.COPIED: frozenset({ReplicaState.ADOPTING}),
        **_TRYING,
    },
    ReplicaState.ADOPTING: {ReplicaEvent.SUBSCRIBED: frozenset({ReplicaState.CATCHING_UP}), **_TRYING},
    ReplicaState.CATCHING_UP: {ReplicaEvent.CAUGHT_UP: frozenset({ReplicaState.LIVE}), **_TRYING},
    ReplicaState.LIVE: {**_TRYING},
    ReplicaState.DISCONNECTED: {**_RESTING},
    ReplicaState.REFUSED: {ReplicaEvent.DIVERGE: frozenset({ReplicaState.STOPPED}), **_RESTING},
    ReplicaState.STOPPED: {**_RESTING},
    ReplicaState.OFF: {**_RESTING},
}
