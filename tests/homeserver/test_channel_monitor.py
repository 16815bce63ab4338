"""What is kept of a channel on which any process can say anything."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from synrepl.homeserver.channel_monitor import MAX_WRITERS, ChannelMonitor, redis_address
from synrepl.homeserver.configuration import RedisSettings
from synrepl.streams.writer import Writer
from synrepl.transports.redis.connections import RedisRefused, explain, tls_words
from synrepl.transports.tls import _certificates
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.rdata_runs import RdataRun
from tests.certificates import Authority


def listener() -> ChannelMonitor:
    """One that is not connected."""
    return ChannelMonitor(Clock(), RedisSettings(), "example.org")


def row(stream: str, writer: str, token: int | None) -> Rdata:
    """A row."""
    return Rdata(stream=stream, instance=writer, token=token, row=b"[]")


def test_the_highest_token_of_each_writer_is_kept() -> None:
    """Of rows, runs of rows and positions; ids that descend count as they ascend."""
    heard = listener()
    run = RdataRun(stream="receipts", instance="w1", tokens=[4, None, 7], rows=[b"[]"] * 3)
    back = Position(stream="backfill", instance="w1", prev_token=-2, token=-9)
    heard.received([row("receipts", "w1", 5), run, row("receipts", "w2", None), back])
    found = heard.heard()

    assert {"receipts": {"w1": 7, "w2": 0}, "backfill": {"w1": 9}} == found.positions
    assert {("receipts", "w1"): 4, ("receipts", "w2"): 1} == found.rows


def test_rows_that_cannot_be_read_are_counted() -> None:
    """A daemon would record them as lost. Of unknown streams only the JSON is read."""
    heard = listener()
    half = rb'["\ud800"]'
    run = RdataRun(
        stream="push_rules",
        instance="w1",
        tokens=[1, None, 3, 4],
        rows=[b'["@a:b"]', half, b'["@a:b"]', b"[1]"],
    )
    heard.received([run])
    heard.received([Rdata(stream="push_rules", instance="w1", token=5, row=half)])
    heard.received([Rdata(stream="of_a_module", instance="w1", token=5, row=b'[{"any": 1}]')])
    heard.received([Rdata(stream="of_a_module", instance="w2", token=6, row=b"[NaN]")])

    found = heard.heard().unreadable

    assert {("push_rules", "w1"): (3, 3), ("of_a_module", "w2"): (1, 6)} == {
        key: (one.count, one.token) for key, one in found.items()
    }
    assert "one half of a surrogate pair" in found[Writer("push_rules", "w1")].why


def test_it_begins_and_ends_with_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says why nothing was heard, until it is subscribed."""
    heard = listener()
    done: list[str] = []
    monkeypatch.setattr(heard._link, "start", lambda: done.append("start"))
    monkeypatch.setattr(heard._link, "stop", lambda: done.append("stop"))
    began = heard.start()
    assert (began.called, heard.heard().trouble) == (False, "not connected yet")
    heard.subscriber_up()
    assert (began.called, heard.heard().trouble) == (True, "")
    heard.stop()

    assert ["start", "stop"] == done


@pytest.mark.parametrize("ends", ["refused", "silent"])
def test_a_redis_that_is_not_there_is_not_awaited_for_long(ends: str) -> None:
    """What is announced is then not known; the rest is looked at."""
    clock = Clock()
    heard = ChannelMonitor(clock, RedisSettings(), "example.org")
    heard._link = SimpleNamespace(start=lambda: None, stop=lambda: succeed(None))  # type: ignore[assignment]
    began = heard.start()
    if ends == "refused":
        heard.unreachable("connection refused")
        assert began.called
    clock.advance(2.9)
    assert began.called == (ends == "refused")
    clock.advance(0.2)
    assert began.called
    heard.subscriber_up()
    heard.stop()
    assert not clock.getDelayedCalls()


def test_answers_are_positions_that_do_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of idle writers, which follow the others, are none."""
    heard = listener()
    monkeypatch.setattr(heard._link, "query", lambda *words: succeed(0))
    answer = Position(stream="sticky_events", instance="w1", prev_token=7, token=7)
    moved = Position(stream="sticky_events", instance="w1", prev_token=7, token=9)
    heard.received([answer])
    for extra in (moved, answer):
        Deferred.fromCoroutine(heard.ask())
        heard.received([answer, extra])
    found = heard.heard()

    assert (2, {("sticky_events", "w1"): 1}) == (found.asks, found.answers)


def test_redis_is_asked_for_subscribers_and_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that may not ask learns nothing of it, and a promoted replica is none any more."""
    heard = listener()
    heard.subscriber_up()
    replica = [b"slave", b"10.0.0.1", 6379, b"connected", 5]
    refused, disabled = RedisRefused("NOPERM"), RedisRefused("cluster support disabled")
    found = []
    for role, cluster in (
        (replica, disabled),
        ([b"master", 0, []], disabled),
        (replica, disabled),
        (refused, disabled),
        # In a cluster all nodes pass on what is published; without the right to ask it is not known.
        (replica, b"cluster_state:ok"),
        (replica, refused),
    ):
        answers: dict[str, Any] = {"PUBSUB": [b"example.org", 3], "ROLE": role, "CLUSTER": cluster}

        def query(name: str, *words: str, answers: dict[str, Any] = answers) -> "Deferred[Any]":
            answer = answers[name]
            return fail(answer) if isinstance(answer, Exception) else succeed(answer)

        monkeypatch.setattr(heard._link, "query", query)
        Deferred.fromCoroutine(heard.query_redis())
        found.append((heard.heard().subscribers, heard.heard().replica_of))

    assert [(2, "10.0.0.1:6379"), (2, ""), (2, "10.0.0.1:6379"), (2, ""), (2, ""), (2, "")] == found


def test_invented_names_are_bounded() -> None:
    """Those that are known go on."""
    heard = listener()
    heard.received([row("receipts", "w1", 1)])
    heard.received([row(f"stream{number}", f"writer{number}", 1) for number in range(2 * MAX_WRITERS)])
    heard.received([row("receipts", "w1", 2)])
    found = heard.heard()

    assert MAX_WRITERS == sum(map(len, found.positions.values())) == len(found.rows)
    assert found.positions["receipts"] == {"w1": 2}


def test_names_are_safe_to_show() -> None:
    """A terminal would obey them."""
    heard = listener()
    heard.received([row("receipts", "a\x1b[2J", 1)])
    ((_, writer),) = heard.heard().rows

    assert writer.isprintable()


@pytest.mark.parametrize(
    ("refusal", "setting"),
    [
        ("NOAUTH Authentication required.", "set redis.password"),
        ("WRONGPASS invalid username-password pair", "check redis.password"),
        ("ERR AUTH <password> called without any password configured", "remove redis.password"),
    ],
)
def test_a_refusal_names_the_settings_of_the_homeserver(refusal: str, setting: str) -> None:
    """Not those of a URL, which its operator has never written."""
    said = explain(refusal, redis_address(RedisSettings()).words)

    assert setting in said
    assert "password_file" not in said


def test_words_on_tls_name_the_settings_of_the_homeserver() -> None:
    """Each of them."""
    words = tls_words(redis_address(RedisSettings()).words)

    assert "redis.use_tls" in words.not_tls
    assert "redis.ca_file" in words.trust
    assert "redis.certificate_file and redis.private_key_file" in words.show


def test_a_folder_of_authorities_is_read(tmp_path: Path) -> None:
    """As `redis.ca_path` names one."""
    authorities = [Authority(tmp_path, name) for name in ("one", "two")]
    address = redis_address(RedisSettings(is_tls=True, ca_path=str(tmp_path)))

    assert tmp_path == address.ca_file
    assert len(authorities) == len(_certificates(tmp_path))


@pytest.mark.parametrize("host", ["a\x1b]0;owned\x07", "a b", "." * 300, "\u202e", "redis://:secret@host"])
def test_a_host_that_can_be_no_name_is_refused_in_words(host: str) -> None:
    """Without a traceback in the log, and without the text."""
    clock = MemoryReactorClock()
    heard = ChannelMonitor(clock, RedisSettings(host=host), "example.org")
    logged: list[LogEvent] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        logged.append(event)

    globalLogPublisher.addObserver(observe)
    try:
        heard.start()
        clock.advance(0)
    finally:
        globalLogPublisher.removeObserver(observe)
    trouble = heard.heard().trouble
    heard.stop()

    assert "not the name of a host" in trouble
    assert trouble.isprintable()
    assert "secret" not in trouble
    assert [] == [one for one in logged if "log_failure" in one]
