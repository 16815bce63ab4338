"""The table of roles: every step of it is taken by real daemons, and no other one is."""

import pytest

from synrepl.replicas.roles.role_states import TRANSITIONS, Role, RoleEvent
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode
from tests.replication.machine_steps import allowed_steps, check_every_event, taken_steps


def restart(cluster: FakeCluster, *nodes: FakeNode) -> None:
    """Kill and start again."""
    for node in nodes:
        node.kill()
        cluster.start(node)


def test_every_event_in_every_role() -> None:
    """It leads where the table says, or is an error that names both and changes nothing."""
    check_every_event(TRANSITIONS, Role, RoleEvent)


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
