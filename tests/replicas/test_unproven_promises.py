"""Logs with facts that somebody forged, stored by a release that took them from everybody."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, Logger
from zope.interface import implementer

from synrepl.replicas.roles.messages import CannotPromote
from synrepl.replication.own_facts import warn_of_unproven
from synrepl.streams.origin import Origin
from tests.replicas.nodes import FakeNode
from tests.replicas.test_acknowledgements import Setup

NOBODY = b'[["acks",["1"],[]]]'
"""A promise of no replica: whoever believes it asks none."""


def forge(setup: Setup, rows: bytes = NOBODY, *, stream: str = "promises", writer: str = "persister1") -> int:
    """Store a fact as a release up to 26.11.0 did; return its serial."""
    stored = setup.a.log.append(stream, writer, [rows], origin=Origin.DAEMON)
    serial = setup.done(stored).first_serial
    assert isinstance(serial, int)
    setup.cluster.pass_(1)
    return serial


def lost(setup: Setup) -> FakeNode:
    """b alone acknowledges; then it and the primary are gone. Return c."""
    c = setup.replicas["c"]
    c.kill()
    setup.done(setup.append("1"))
    setup.a.kill()
    setup.replicas["b"].kill()
    setup.cluster.start(c)
    setup.cluster.pass_(2)
    return c


def refusal(setup: Setup, node: FakeNode, **options: Any) -> CannotPromote:
    """Why it is not promoted."""
    with pytest.raises(CannotPromote) as refused:
        setup.done(Deferred.fromCoroutine(node.promotion.promote(**options)), 20)
    return refused.value


def warnings(node: FakeNode, *, primary: str) -> list[str]:
    """What the start of a daemon with this log tells."""
    told: list[str] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        told.append(event["log_format"].format(**event))

    logger = Logger(observer=observe)
    done = Deferred.fromCoroutine(warn_of_unproven(node.log, logger, primary=primary))
    node.clock.pump([0.01] * 50)
    assert done.called
    return told


@pytest.mark.parametrize("force", [True, False])
def test_a_promotion_asks_whom_to_believe(force: bool) -> None:
    """Neither the forged promise counts, nor is the primary's ignored, before an operator has said it."""
    setup = Setup("b", "c")
    honest = setup.prime("1") - 1
    forged = forge(setup)
    c = lost(setup)

    refused = refusal(setup, c, force=force)

    assert ("promises_unproven", False) == (refused.code, refused.retryable)
    assert [(honest, "a"), (forged, "persister1")] == [
        (one["serial"], one["writer"]) for one in refused.more["promises"]
    ]
    assert "replica" == c.roles.role


@pytest.mark.parametrize(
    ("believed", "code"),
    [(["a"], "replicas_silent"), (["a", "persister1"], ""), (["persister1"], ""), ([], "")],
)
def test_what_the_operator_says_counts(believed: list[str], code: str) -> None:
    """Of the writers that are believed, the newest promise; of nobody, none."""
    setup = Setup("b", "c")
    setup.prime("1")
    forge(setup)
    c = lost(setup)

    if code:
        assert code == refusal(setup, c, force=True, believed=believed).code
    else:
        setup.done(Deferred.fromCoroutine(c.promotion.promote(force=True, believed=believed)), 20)
        assert "primary" == c.roles.role


def test_who_gives_up_what_was_acknowledged_need_not_say_it() -> None:
    """The promises are not read."""
    setup = Setup("b", "c")
    setup.prime("1")
    forge(setup)
    c = lost(setup)

    setup.cluster.promote(c, force=True, lose_acknowledged=True)

    assert "primary" == c.roles.role


def test_a_fenced_daemon_asks_too() -> None:
    """Its log is no better."""
    setup = Setup("b", "c")
    setup.prime("1")
    forge(setup)
    setup.done(Deferred.fromCoroutine(setup.replicas["b"].promotion.promote(believed=["a"])), 20)
    setup.cluster.pass_(3)
    assert "fenced" == setup.a.roles.role

    assert "promises_unproven" == refusal(setup, setup.a, force=True).code


def test_the_promise_of_an_earlier_primary_counts() -> None:
    """Under its own name: in another epoch another daemon was primary."""
    setup = Setup("b", "c")
    setup.prime("1")
    b, c = setup.replicas.values()
    setup.cluster.promote(b)
    setup.cluster.pass_(3)
    setup.a.kill()
    b.kill()

    assert "replicas_silent" == refusal(setup, c, force=True).code


def test_a_position_of_the_stream_hides_no_promise() -> None:
    """A POSITION was stored as a fact without rows, at any token, also under the primary's name."""
    setup = Setup("b", "c")
    setup.prime("1")
    stored = setup.a.log.append("promises", "a", [b"[]"], origin=Origin.DAEMON)
    setup.done(stored)
    setup.cluster.pass_(1)
    c = lost(setup)

    assert "replicas_silent" == refusal(setup, c, force=True).code


def test_the_start_of_a_primary_names_what_is_not_under_its_name() -> None:
    """It knows who was primary."""
    setup = Setup("b")
    setup.prime("1")
    assert [] == warnings(setup.a, primary="a")
    serial = forge(setup, b'[["evil",[],"kept",null,[]]]', stream="declarations", writer="stranger\x1b[2J")

    (told,) = warnings(setup.a, primary="a")

    assert f"serial {serial} of epoch 1 by stranger" in told
    assert "promises" not in told
    assert "\x1b" not in told


def test_the_start_of_a_replica_names_all_if_one_of_them_lies() -> None:
    """It does not know which."""
    setup = Setup("b")
    setup.prime("1")
    assert [] == warnings(setup.replicas["b"], primary="")
    forge(setup)

    (told,) = warnings(setup.replicas["b"], primary="")

    assert "by a, " in told
    assert "by persister1" in told


def test_the_start_names_a_mark_without_its_facts() -> None:
    """The facts of an atomic append are stored together: those of this one were never."""
    setup = Setup("b")
    serial = forge(setup, b"[[1000]]", stream="atomic_appends", writer="web")

    (told,) = warnings(setup.a, primary="a")

    assert f"begins at serial {serial}" in told
    assert "wait for 1000 facts more" in told
