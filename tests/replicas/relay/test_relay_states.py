"""The table of a relay's states: what it forbids is refused, and what it allows can happen."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from synrepl.base.history import BEGINNING, LogSnapshot
from synrepl.base.time import sleep
from synrepl.errors import RemoteProtocolError
from synrepl.replicas.relay import relay as relay_module
from synrepl.replicas.relay.relay import Relay
from synrepl.replicas.relay.relay_states import TRANSITIONS, RelayEvent, RelayState
from synrepl.replicas.relay.snapshot_codec import snapshot_block
from synrepl.replicas.wire.native import (
    VERSION,
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
    refusal,
)
from synrepl.replication.serving import text_pages as pages_module
from synrepl.wire.grammar import Command
from synrepl.wire.position import LogPosition
from tests.replicas.clusters import FakeCluster
from tests.replication.machine_steps import allowed_steps, taken_steps

COMMANDS: list[Command] = [
    Hello(uuid="u", name="n", version=VERSION),
    Join(),
    Subscribe(history="h", position=LogPosition(1, 0, "")),
    Digests(serials=[1]),
    Up(origin="o", number=1, line="USER_IP"),
    Ack(epoch=1, serial=0, at_ms=0),
    Channel(),
    Publish(publisher="r.1", line="REMOTE_SERVER_UP x"),
    PublishTo(publisher="r.1", channel="USER_IP", line="USER_IP"),
    PublisherLost("r.1"),
]
OF_A_CHANNEL = (Publish, PublishTo, PublisherLost)


def test_the_commands_are_those_of_the_table() -> None:
    """A new one needs an example here."""
    events = {event for events in TRANSITIONS.values() for event in events}

    assert {type(command) for command in COMMANDS} | set(RelayEvent) == events
    assert set(TRANSITIONS) == set(RelayState)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("state", RelayState, ids=lambda state: state.name)
def test_a_command_that_the_table_forbids_is_refused(state: RelayState, command: Command) -> None:
    """And changes nothing. After a refusal or the end of the connection, nothing is read any more."""
    if type(command) in TRANSITIONS[state]:
        return
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.raw("a").greet(cluster)
    (relay,) = a.connected_relays
    relay._machine.state = state

    if isinstance(command, Ack) or state in (RelayState.REFUSED, RelayState.GONE):
        relay.received([command])
    else:
        with pytest.raises(RemoteProtocolError, match=r"is valid only in the state|not valid before"):
            relay.received([command])

    assert state is relay.state
    cluster.pass_(0.2)
    assert state is relay.state
    relay._machine.state = RelayState.READY


class AnyChannel:
    """A channel of which nothing is passed."""

    is_served = True

    def downlink(self, write: Any, **options: Any) -> Any:
        """What takes everything."""
        taken = ("start", "stop", "published", "publisher_lost", "pause", "resume")
        return SimpleNamespace(**dict.fromkeys(taken, _ignore))

    def connected(self, conversation: Any) -> None:
        """There is no upstream."""

    def disconnected(self) -> None:
        """There is none."""


def _ignore(*given: Any, **named: Any) -> None:
    pass


class Replica:
    """A replica that is brought to a state by what it says, and by what its transport has room for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = FakeCluster()
        self.node = self.cluster.node("a")
        self.cluster.wrote(self.node, 40)
        self.node.registry.channel = AnyChannel
        self.raw = self.cluster.raw("a")
        self._patch = monkeypatch
        monkeypatch.setattr(pages_module, "PAGE_FACTS", 5)

    def bring(self, state: RelayState) -> None:
        """Go as far as this state, and stay there."""
        raw, cluster = self.raw, self.cluster
        if state is RelayState.GREETING:
            # A native listener finds out by HELLO that the peer is a replica.
            connection = Mock(certified_name=None, is_local=True)
            relay_module.attach(self.node.registry, connection)
        else:
            welcome = raw.greet(cluster)
            assert welcome is not None
            if state is RelayState.SNAPSHOT:
                raw.tell("JOIN", Join())
                self._pause_in_the_middle()
            elif state is RelayState.MEANWHILE:
                self._patch.setattr(relay_module, "snapshot_block", self._pause_at_the_end(snapshot_block))
                raw.tell("JOIN", Join())
                cluster.pass_(0.2)
            elif state is RelayState.JOINED:
                raw.tell("JOIN", Join())
                cluster.pass_(0.2)
            elif state is RelayState.ADMITTING:
                self._patch.setattr(self.node.registry, "subscription_refusal", self._admit_later)
                raw.tell("SUBSCRIBE", Subscribe(history=welcome.history, position=BEGINNING))
                cluster.pass_(0.1)
            elif state is RelayState.CATCHING_UP:
                self._patch.setattr(Relay, "_start_heartbeats", lambda relay: relay.pause())
                raw.tell("SUBSCRIBE", Subscribe(history=welcome.history, position=BEGINNING))
                cluster.pass_(0.1)
            elif state is RelayState.LIVE:
                raw.subscribe(cluster, welcome)
        assert state is self.relay.state

    def cut(self, relay: Relay) -> None:
        """End its connection."""
        if isinstance(relay.connection, Mock):
            relay.closed("the line was cut")
        else:
            self.raw.transport.loseConnection()
            self.cluster.pass_(0.1)

    @property
    def relay(self) -> Relay:
        """The relay of its connection."""
        (relay,) = self.node.connected_relays
        return relay

    async def _admit_later(self, *_: object, **__: object) -> None:
        await sleep(self.cluster.clock, 1.0)

    def _pause_in_the_middle(self) -> None:
        while not self.raw.blocks("facts"):
            self.cluster.clock.advance(0.0001)
        self.relay.pause()

    def _pause_at_the_end(self, encode: Callable[[LogSnapshot], bytes]) -> Callable[[LogSnapshot], bytes]:
        def paused(snapshot: LogSnapshot) -> bytes:
            self.relay.pause()
            return encode(snapshot)

        return paused


HELD = [state for state in RelayState if state not in (RelayState.REFUSED, RelayState.GONE)]


def test_the_table_has_no_step_that_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """From each state: all that the replica may say, a refusal, the loss of the connection, and going on."""
    taken = taken_steps(monkeypatch, RelayState)
    for state in HELD:
        with monkeypatch.context() as patch:
            for command in COMMANDS:
                if type(command) in TRANSITIONS[state]:
                    replica = Replica(patch)
                    replica.bring(state)
                    if isinstance(command, OF_A_CHANNEL):
                        replica.relay.received([Channel()])
                    replica.relay.received([command])
            lost = Replica(patch)
            lost.bring(state)
            relay = lost.relay
            lost.cut(relay)
            assert relay.state is RelayState.GONE
            refused = Replica(patch)
            refused.bring(state)
            relay = refused.relay
            relay._refuse(refusal("trimmed", "it is gone"))
            refused.cut(relay)
            assert relay.state is RelayState.REFUSED
            goes_on = Replica(patch)
            goes_on.bring(state)
            goes_on.relay.resume()
            goes_on.cluster.wrote(goes_on.node)
            goes_on.cluster.pass_(1.2)

    assert allowed_steps(TRANSITIONS) == taken
