"""States of a member of a shared channel, as a table.

A process has two connections to Redis, as Redis allows no other commands on one that has subscribed: one
subscribes, the other publishes. Each of them is lost and made again by itself. A process joins the channel
once it has both: then it asks for everybody's positions, and believes what it receives. It stays joined as
long as the subscription lasts. If only the publisher's connection is lost, no message is missed; once there
is one again, the process asks again, because its last messages may be lost, the question among them. If the
subscription is lost, messages are missed, and the process joins anew.

What is asked, and what is published, is done in `daemon_member.py`. Here is what may come of the news of each
connection.
"""

import enum
from typing import Final

from synrepl.replication.machine import NamedState, Transitions


class ChannelState(NamedState):
    """What a member can do on the channel."""

    DISCONNECTED = "disconnected", "it has neither connection"
    SUBSCRIBED = "subscribed", "it receives messages, and has not asked anything yet"
    PUBLISHING = "publishing", "it can publish, and receives no messages"
    JOINED = "joined", "it has both connections, and has asked for all positions"
    UNHEARD = "unheard", "it has joined and receives messages, and cannot publish"
    STOPPED = "stopped", "this process has left the channel"


class ChannelEvent(enum.Enum):
    """What happens to the member's connections."""

    SUBSCRIBER_UP = "every subscription is confirmed"
    SUBSCRIBER_DOWN = "the subscriber's connection was lost"
    PUBLISHER_UP = "the publisher's connection is up"
    PUBLISHER_DOWN = "the publisher's connection was lost"
    STOP = "this process leaves the channel"


def _one(state: ChannelState) -> frozenset[ChannelState]:
    return frozenset({state})


TRANSITIONS: Final[Transitions[ChannelState]] = {
    ChannelState.DISCONNECTED: {
        ChannelEvent.SUBSCRIBER_UP: _one(ChannelState.SUBSCRIBED),
        ChannelEvent.PUBLISHER_UP: _one(ChannelState.PUBLISHING),
        ChannelEvent.STOP: _one(ChannelState.STOPPED),
    },
    ChannelState.SUBSCRIBED: {
        ChannelEvent.SUBSCRIBER_DOWN: _one(ChannelState.DISCONNECTED),
        ChannelEvent.PUBLISHER_UP: _one(ChannelState.JOINED),
        ChannelEvent.STOP: _one(ChannelState.STOPPED),
    },
    ChannelState.PUBLISHING: {
        ChannelEvent.SUBSCRIBER_UP: _one(ChannelState.JOINED),
        ChannelEvent.PUBLISHER_DOWN: _one(ChannelState.DISCONNECTED),
        ChannelEvent.STOP: _one(ChannelState.STOPPED),
    },
    ChannelState.JOINED: {
        ChannelEvent.SUBSCRIBER_DOWN: _one(ChannelState.PUBLISHING),
        ChannelEvent.PUBLISHER_DOWN: _one(ChannelState.UNHEARD),
        ChannelEvent.STOP: _one(ChannelState.STOPPED),
    },
    ChannelState.UNHEARD: {
        ChannelEvent.SUBSCRIBER_DOWN: _one(ChannelState.DISCONNECTED),
        ChannelEvent.PUBLISHER_UP: _one(ChannelState.JOINED),
        ChannelEvent.STOP: _one(ChannelState.STOPPED),
    },
    # Its connections are closed after it, and report that.
    ChannelState.STOPPED: {event: _one(ChannelState.STOPPED) for event in ChannelEvent},
}
