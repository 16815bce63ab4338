"""The watch keeps what is wrong now, and tells it; the looks are made by hand."""

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from synrepl.errors import StorageError
from synrepl.homeserver.addresses import MetricsAddress
from synrepl.homeserver.configuration import DatabaseSettings, Homeserver, Process, RedisSettings
from synrepl.homeserver.looks import DatabaseLook, Heard, Look, MetricsLook
from synrepl.homeserver.refusals import Refusal
from synrepl.homeserver.watch import HomeserverWatch
from synrepl.homeserver.watch_metrics import WatchMetrics
from synrepl.wire.dialect import span

SERVER = Homeserver(
    server_name="example.org",
    database=None,
    redis=None,
    processes=(Process(name="master", file="homeserver.yaml"), Process(name="w1", file="w1.yaml")),
    writers={"receipts": ("w1",)},
)


def wait(work: Coroutine[Any, Any, None]) -> None:
    """Run work that waits for nothing."""
    with pytest.raises(StopIteration):
        work.send(None)


class Watched:
    """A watch, and what it would see."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.registry = CollectorRegistry()
        self.watch = HomeserverWatch(self.clock, SERVER, WatchMetrics(self.registry))

    def see(self, position: int, announced: int | None = None, *, since: float = -60.0) -> list[str]:
        """Look once, 5 seconds after the last time: the kinds of what is wrong."""
        at = self.clock.seconds()
        heard = {} if announced is None else {"receipts": {"w1": announced}}
        database = DatabaseLook(at=at, positions={"receipts": {"w1": position}}, sequences={})
        self.watch._looks.append(Look(at=at, database=database, heard=Heard(positions=heard, since=since)))
        self.watch._compare()
        self.clock.advance(5)
        return [one.kind for one in self.watch.findings]

    def value(self, name: str, **labels: str) -> float | None:
        """A metric."""
        return self.registry.get_sample_value(f"synrepl_{name}", labels)


def test_one_silent_row_is_told_within_two_looks() -> None:
    """It need not move again: the listener was there long before."""
    watched = Watched()
    seen = [watched.see(position) for position in (5, 5, 6, 6)]

    assert [[], [], [], ["never_announced"]] == seen
    assert watched.value("stream_unannounced_rows", stream="receipts", writer="w1") == 1
    assert watched.value("homeserver_findings", kind="never_announced") == 1
    labels = {"stream": "receipts", "writer": "w1", "process": "w1", "because": "never_announced"}
    assert watched.value("homeserver_lag_rows", **labels) == 1


def test_each_key_that_is_refused_is_a_finding_of_its_own() -> None:
    """Also of one process. Until the releases are known, nothing is said of them."""
    refusals = tuple(
        Refusal(span=span("1.88"), key=key, why=f"`{key}` is gone", remedy="remove it") for key in ("a", "b")
    )
    for metrics, kinds in ((None, ["refused_key"] * 2), (MetricsAddress(url="http://w1"), [])):
        watched = Watched()
        process = Process(name="w1", file="w1.yaml", refusals=refusals, metrics=metrics)
        watched.watch._homeserver = msgspec.structs.replace(SERVER, processes=(process,))

        assert kinds == watched.see(5)


def test_a_finding_stays_until_the_row_is_announced() -> None:
    """Although the writer is idle, and the looks are forgotten."""
    watched = Watched()
    for position in (5, 6, 6, *[6] * 10):
        watched.see(position)
    (finding,) = watched.watch.findings

    assert finding.since_seconds is not None
    assert finding.since_seconds >= 50
    assert (watched.value("stream_unannounced_seconds", stream="receipts", writer="w1") or 0) >= 50
    assert [] == watched.see(6, 6)
    assert watched.value("stream_unannounced_rows", stream="receipts", writer="w1") is None


@pytest.mark.parametrize("announced", [6, 7])
def test_an_announced_row_is_no_finding(announced: int) -> None:
    """Before it is stored, or after."""
    watched = Watched()
    seen = [watched.see(5), watched.see(6), watched.see(6, announced), watched.see(6, announced)]

    assert [[]] * 4 == seen


def test_a_listener_that_has_just_come_knows_nothing() -> None:
    """What moved may have been announced before."""
    watched = Watched()
    seen = [watched.see(position, since=2.0) for position in (5, 6, 6)]

    assert [[]] * 3 == seen


@pytest.mark.parametrize("hears_at", [0.0, 2.0])
def test_a_row_right_after_the_first_look_counts(hears_at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the subscription came later than the database: a look before it would prove nothing."""
    clock, began = Clock(), Deferred[None]()
    positions = iter([5, 6, 6, 6])

    class Listener:
        since = float("inf")

        def start(self) -> "Deferred[None]":
            return began

        def heard(self) -> Heard:
            return Heard(since=self.since)

        def query_redis(self) -> "Deferred[None]":
            return succeed(None)

        def stop(self) -> "Deferred[None]":
            return succeed(None)

    class Viewer:
        def look(self, before: DatabaseLook | None) -> DatabaseLook:
            return DatabaseLook(
                at=clock.seconds(), positions={"receipts": {"w1": next(positions)}}, sequences={}
            )

        def close(self) -> None:
            """Nothing is open."""

    listener = Listener()
    monkeypatch.setattr("synrepl.homeserver.watch.ChannelMonitor", lambda *given: listener)
    monkeypatch.setattr("synrepl.homeserver.watch.open_database", lambda settings: None)
    monkeypatch.setattr("synrepl.homeserver.watch.DatabaseViewer", lambda *given: Viewer())
    server = msgspec.structs.replace(SERVER, redis=RedisSettings(), database=DatabaseSettings(), processes=())
    watch = HomeserverWatch(clock, server, WatchMetrics(CollectorRegistry()))
    watch._thread = SimpleNamespace(run=lambda work: succeed(work()), stop=lambda: succeed(None))  # type: ignore[assignment]
    watch.start()
    clock.advance(hears_at)
    assert not watch._looks
    listener.since = clock.seconds()
    began.callback(None)
    for _ in range(3):
        clock.advance(5)

    assert ["never_announced"] == [one.kind for one in watch.findings]
    Deferred.fromCoroutine(watch.stop())
    assert not clock.getDelayedCalls()


def test_a_database_that_cannot_be_asked_is_found_at_the_second_look() -> None:
    """And is no finding any more once it can."""
    watched = Watched()
    errors: list[Any] = [StorageError(op="connect", why="refused"), StorageError(op="connect", why="refused")]

    def look(before: DatabaseLook | None) -> DatabaseLook:
        if errors:
            raise errors.pop()
        return DatabaseLook(at=watched.clock.seconds(), positions={}, sequences={})

    def run(work: Callable[[], Any]) -> "Deferred[Any]":
        try:
            return succeed(work())
        except StorageError as error:
            return fail(error)

    watched.watch._viewer = SimpleNamespace(look=look)  # type: ignore[assignment]
    watched.watch._thread = SimpleNamespace(run=run)  # type: ignore[assignment]
    seen = []
    for _ in range(3):
        watched.watch._count = 1  # no metrics at this look
        Deferred.fromCoroutine(watched.watch._look())
        seen.append([one.kind for one in watched.watch.findings])
        watched.clock.advance(5)

    assert [[], ["database_unreachable"], []] == seen
    assert [] == watched.watch.status()["unseen"]


def test_a_look_has_what_was_heard() -> None:
    """Of a listener, if the homeserver has a Redis."""
    watched = Watched()
    heard = Heard(positions={"receipts": {"w1": 7}})
    for listener in (None, SimpleNamespace(heard=lambda: heard, query_redis=lambda: succeed(None))):
        watched.watch._channel = listener  # type: ignore[assignment]
        watched.watch._count = 1  # no metrics at this look
        wait(watched.watch._look())

    assert [None, heard] == [look.heard for look in watched.watch._looks]


def test_pages_of_metrics_are_compared_with_those_before() -> None:
    """Whatever looks come between."""
    watched = Watched()
    first = {
        "master": MetricsLook(at=0, positions={"receipts": 9}),
        "w1": MetricsLook(at=0, positions={"receipts": 5}),
    }
    watched.watch._pages.append(first)
    watched.see(5, 9)
    watched.see(5, 9)
    watched.watch._pages.append({name: msgspec.structs.replace(page, at=15) for name, page in first.items()})

    assert ["not_received"] == watched.see(5, 9)
    assert watched.watch.status()["findings"][0]["process"] == "w1"
    watched.watch._pages.append({"w1": MetricsLook(at=30, positions={"receipts": 9})})
    assert [] == watched.see(5, 9)
