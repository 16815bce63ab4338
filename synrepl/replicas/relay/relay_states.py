"""States of a relay: what one replica's connection goes through, as a table.

A connection begins with HELLO. A replica without a copy, or with one that the log
cannot continue, then asks for a copy (JOIN): the snapshot, and the facts that were committed meanwhile, as
SUBSCRIBE must not begin with a long way to go. With a copy it subscribes, and is sent the log from there on,
for as long as the connection lasts. A refusal ends everything but the connection, which the refused replica
closes; the loss of the connection ends every state.

The events are the replica's commands, by their classes, and what happens on our side (`RelayEvent`). What a
command asks for, and whether it is granted, is decided in `relay.py`; which commands are possible at all, and
what may come of them, is said here.
"""

import enum
from collections.abc import Hashable, Mapping
from typing import Final

from synrepl.replicas.wire.native import (
    Ack,
    Channel,
    Digests,
    Hello,
    Join,
    Publish,
    PublisherLost,
    PublishTo,
    Subscribe,
    Up,
)
from synrepl.replication.machine import NamedState, Transitions


class RelayState(NamedState):
    """What a relay does. Operators see the words."""

    GREETING = "greeting", "connected; no handshake yet"
    READY = "ready", "authenticated; no request yet"
    SNAPSHOT = "snapshot", "joining: it is sent the snapshot"
    MEANWHILE = "meanwhile", "joining: it is sent the facts committed since the snapshot"
    JOINED = "joined", "it was sent the whole copy, and has not subscribed yet"
    ADMITTING = "admitting", "asked to subscribe: whether its position lies in this log is looked up"
    CATCHING_UP = "catching up", "subscribed: it is sent missing facts from the log"
    LIVE = "live", "subscribed: it is sent new facts as they are committed"
    REFUSED = "refused", "it was refused with a reason"
    GONE = "gone", "its connection has ended"


class RelayEvent(enum.Enum):
    """What happens on the upstream's side."""

    SNAPSHOT_SENT = "everything of the snapshot was sent"
    ADMIT = "the replica's position lies in this log, and it may subscribe"
    AT_HEAD = "everything in the log was sent"
    REFUSE = "the replica cannot be served"
    LOST = "the connection has ended"


_Events = Mapping[Hashable, frozenset[RelayState]]

_LOST: Final[_Events] = {RelayEvent.LOST: frozenset({RelayState.GONE})}
_REFUSE: Final[_Events] = {RelayEvent.REFUSE: frozenset({RelayState.REFUSED})}

_IDLE: Final[_Events] = {
    Join: frozenset({RelayState.SNAPSHOT}),
    Subscribe: frozenset({RelayState.ADMITTING}),
    **_REFUSE,
    **_LOST,
}
"""The replica asks, and nothing is sent: DIGESTS come only here, as they share the answers' order."""

OF_THE_CHANNEL: Final = (Channel, Publish, PublishTo, PublisherLost)

TRANSITIONS: Final[Transitions[RelayState]] = {
    RelayState.GREETING: {Hello: frozenset({RelayState.READY}), **_REFUSE, **_LOST},
    RelayState.READY: {
        Up: frozenset({RelayState.READY}),
        Digests: frozenset({RelayState.READY}),
        **_IDLE,
    },
    RelayState.SNAPSHOT: {
        Up: frozenset({RelayState.SNAPSHOT}),
        RelayEvent.SNAPSHOT_SENT: frozenset({RelayState.MEANWHILE}),
        **_REFUSE,
        **_LOST,
    },
    RelayState.MEANWHILE: {
        Up: frozenset({RelayState.MEANWHILE}),
        RelayEvent.AT_HEAD: frozenset({RelayState.JOINED}),
        **_REFUSE,
        **_LOST,
    },
    RelayState.JOINED: {
        Up: frozenset({RelayState.JOINED}),
        Digests: frozenset({RelayState.JOINED}),
        **_IDLE,
    },
    # What it acknowledges now may be facts of another history.
    RelayState.ADMITTING: {
        Up: frozenset({RelayState.ADMITTING}),
        RelayEvent.ADMIT: frozenset({RelayState.CATCHING_UP}),
        **_REFUSE,
        **_LOST,
    },
    RelayState.CATCHING_UP: {
        Up: frozenset({RelayState.CATCHING_UP}),
        Ack: frozenset({RelayState.CATCHING_UP}),
        **dict.fromkeys(OF_THE_CHANNEL, frozenset({RelayState.CATCHING_UP})),
        RelayEvent.AT_HEAD: frozenset({RelayState.LIVE}),
        **_REFUSE,
        **_LOST,
    },
    RelayState.LIVE: {
        Up: frozenset({RelayState.LIVE}),
        Ack: frozenset({RelayState.LIVE}),
        **dict.fromkeys(OF_THE_CHANNEL, frozenset({RelayState.LIVE})),
        RelayEvent.AT_HEAD: frozenset({RelayState.LIVE}),
        **_REFUSE,
        **_LOST,
    },
    # The reason stays to be read.
    RelayState.REFUSED: {RelayEvent.LOST: frozenset({RelayState.REFUSED})},
    RelayState.GONE: {},
}
