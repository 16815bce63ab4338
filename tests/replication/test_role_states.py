"""The table of roles: every step of it is taken by real daemons, and no other one is."""

import pytest

from synrepl.errors import LocalProtocolError
from synrepl.replication.machine import Machine
from synrepl.replication.roles.states import TRANSITIONS, Role, RoleEvent
from tests.replication.clusters import FakeCluster
from tests.replication.machine_steps import allowed_steps, taken_steps
from tests.replication.nodes import FakeNode


def restart(cluster: FakeCluster, *nodes: FakeNode) -> None:
    """Kill and start again."""
    for node in nodes:
        node.kill()
        cluster.start(node)


@pytest.mark.parametrize("event", RoleEvent, ids=lambda event: event.name)
@pytest.mark.parametrize("role", Role, ids=lambda role: role.name)
def test_every_event_in_every_role(role: Role, event: RoleEvent) -> None:
    """It leads where the table says, or is an error that names both and changes nothing."""
    allowed = TRANSITIONS[role].get(event, frozenset())
    for after in Role:
        machine = Machine("role", TRANSITIONS, role)
        if after in allowed:
            machine.move(event, after)
            assert machine.state is after
        else:
            with pytest.raises(
                LocalProtocolError, match=f"{event.name}.*{role.name}|{role.name}.*{event.name}"
            ):
                machine.move(event, after)
            assert machine.state is role


def test_the_table_has_no_step_that_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three daemons: promotions in order and by force, fencings, restarts, and operators who decide."""
    taken = taken_steps(monkeypatch, Role)
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 20)
    cluster.promote(b)
    cluster.pass_(3)
    assert [Role.FENCED, Role.PRIMARY, Role.REPLICA] == [node.roles.role for node in (a, b, c)]
    restart(cluster, a, b)
    cluster.pass_(3)
    assert [Role.FENCED, Role.PRIMARY] == [node.roles.role for node in (a, b)]
    cluster.promote(c, force=True)
    cluster.pass_(5)
    # Fenced once more, by a still later primary.
    assert [Role.FENCED, Role.FENCED, Role.PRIMARY] == [node.roles.role for node in (a, b, c)]
    assert cluster.resync(b)
    cluster.pass_(3)
    cluster.promote(a, force=True)
    cluster.pass_(5)
    # The replica follows the new primary.
    assert [Role.PRIMARY, Role.REPLICA, Role.FENCED] == [node.roles.role for node in (a, b, c)]

    assert allowed_steps(TRANSITIONS) == taken
