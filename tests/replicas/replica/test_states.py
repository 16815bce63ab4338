"""The table of a replica's states: every step of it is taken by a replica of a real primary."""

from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from synrepl.base.history import LogSnapshot
from synrepl.errors import NotConnected
from synrepl.replicas.relay import relay as relay_module
from synrepl.replicas.relay.snapshot_codec import snapshot_block
from synrepl.replicas.replica.conversation import IConversation, IUpstream, RefusedByUpstream
from synrepl.replicas.replica.replica import Replica
from synrepl.replicas.replica.replica_states import TRANSITIONS, ReplicaEvent, ReplicaState
from synrepl.replicas.wire.native import refusal
from tests.replicas.clusters import FakeCluster
from tests.replication.machine_steps import Steps, allowed_steps, taken_steps

TRYING = [state for state, events in TRANSITIONS.items() if ReplicaEvent.FAIL in events]


class HeldUpstream:
    """A real upstream whose every answer waits until the test lets it pass, or puts an error in its place."""

    def __init__(self, real: IUpstream) -> None:
        self.real = real
        self.where = real.where
        self.gate: Deferred[None] = Deferred()

    async def connect(self, uuid: str, name: str) -> IConversation:
        await self._pass()
        return cast(IConversation, HeldConversation(await self.real.connect(uuid, name), self))

    async def _pass(self) -> None:
        gate = self.gate
        if gate.called:
            gate = self.gate = Deferred()
        await gate

    def let_pass(self) -> None:
        """One answer, or one attempt to connect."""
        gate, self.gate = self.gate, Deferred()
        gate.callback(None)

    def fail(self, error: Exception) -> None:
        """The next answer is this error."""
        gate, self.gate = self.gate, Deferred()
        gate.errback(error)


class HeldConversation:
    """A conversation with a `HeldUpstream`."""

    def __init__(self, real: IConversation, upstream: HeldUpstream) -> None:
        self._real = real
        self._upstream = upstream

    async def next(self) -> Any:
        await self._upstream._pass()
        return await self._real.next()

    def ready(self) -> None:
        """Each event comes by `next`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Setup:
    """A primary with facts, and a replica of it whose upstream is held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = FakeCluster()
        self.primary = self.cluster.node("a")
        self.cluster.wrote(self.primary, 30)
        monkeypatch.setattr(Replica, "start", lambda replica: None)
        self.node = self.cluster.node("b", "a")
        monkeypatch.undo()
        self.steps = taken_steps(monkeypatch, ReplicaState)
        assert self.node.replica is not None
        self.replica = self.node.replica
        self.upstream = HeldUpstream(self.replica.upstream)
        self.replica._upstreams.current = self.upstream
        self.replica.start()

    def bring(self, state: ReplicaState) -> None:
        """Let answers pass until the replica is in this state."""
        for _ in range(1_000):
            if self.replica.state is state:
                return
            if state is ReplicaState.CATCHING_UP and self.replica.state is ReplicaState.MEANWHILE:
                self.cluster.wrote(self.primary, 5)  # there is something to catch up with
            if self.replica.state in TRYING:
                self.upstream.let_pass()
            self.cluster.pass_(0.1)
        raise AssertionError(f"it is {self.replica.state}, not {state}")

    def fail(self, error: Exception) -> None:
        """Put this error in the place of the next answer."""
        self.upstream.fail(error)
        self.cluster.pass_(0.01)


@pytest.mark.parametrize("state", TRYING, ids=lambda state: state.name)
def test_an_attempt_can_end_in_every_way(state: ReplicaState, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the loss of the connection, by a refusal, and by an operator; a retry follows the first two."""
    for error, after in (
        (NotConnected("the line was cut"), ReplicaState.DISCONNECTED),
        (RefusedByUpstream(refusal("duplicate", "come back later")), ReplicaState.REFUSED),
        (None, ReplicaState.OFF),
    ):
        setup = Setup(monkeypatch)
        setup.bring(state)
        if error is None:
            setup.replica.stop()
        else:
            setup.fail(error)
        assert after is setup.replica.state
        if error is not None:
            setup.bring(ReplicaState.CONNECTING)


def test_the_table_has_no_step_that_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long life: every state is reached, left in every way, and left for good at last."""
    taken: Steps = set()
    for state in TRYING:
        for error in (NotConnected("cut"), RefusedByUpstream(refusal("duplicate", "later")), None):
            setup = Setup(monkeypatch)
            setup.bring(state)
            if error is not None:
                setup.fail(error)
                setup.bring(ReplicaState.LIVE)
            setup.replica.stop()
            setup.replica.stop()
            taken |= setup.steps
    for ends_at in (ReplicaState.DISCONNECTED, ReplicaState.REFUSED):
        setup = Setup(monkeypatch)
        setup.bring(ReplicaState.LIVE)
        is_refused = ends_at is ReplicaState.REFUSED
        setup.fail(RefusedByUpstream(refusal("duplicate", "later")) if is_refused else NotConnected("cut"))
        assert ends_at is setup.replica.state
        setup.replica.stop()
        taken |= setup.steps
    for resyncs in (False, True):
        setup = Setup(monkeypatch)
        setup.bring(ReplicaState.LIVE)
        setup.fail(RefusedByUpstream(refusal("fork", "it has other facts")))
        assert setup.replica.state is ReplicaState.STOPPED
        if resyncs:
            assert setup.replica.resync()
            setup.bring(ReplicaState.LIVE)
        setup.replica.stop()
        taken |= setup.steps

    setup = Setup(monkeypatch)

    def paused(snapshot: LogSnapshot) -> bytes:
        setup.primary.connected_relays[0].pause()
        return snapshot_block(snapshot)

    monkeypatch.setattr(relay_module, "snapshot_block", paused)
    setup.bring(ReplicaState.SNAPSHOT)
    setup.cluster.wrote(setup.primary, 5)  # facts that are committed while the copy is sent
    setup.primary.connected_relays[0].resume()
    setup.bring(ReplicaState.LIVE)
    taken |= setup.steps

    assert allowed_steps(TRANSITIONS) == taken
