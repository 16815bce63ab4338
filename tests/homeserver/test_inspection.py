"""One inspection from its first look to its report, with ends that are made by hand."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from synrepl.errors import StorageError
from synrepl.homeserver import inspection
from synrepl.homeserver.configuration import DatabaseSettings, Homeserver, Process, RedisSettings
from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.homeserver.inspection import Inspection, InspectionReport
from synrepl.homeserver.looks import DatabaseLook, Heard, MetricsLook, OpenTransaction
from synrepl.streams.writer import Writer
from synrepl.transports.redis.connections import RedisRefused

SERVER = Homeserver(
    server_name="hs",
    database=DatabaseSettings(path="/hs.db"),
    redis=RedisSettings(),
    processes=(Process(name="master", file="a.yaml"), Process(name="w1", file="b.yaml")),
)


class Ends:
    """What the database, Redis and the processes show, and what was asked of them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.positions: dict[str, dict[str, int]] = {"receipts": {"w1": 5}}
        self.heard: dict[str, dict[str, int]] = {"receipts": {"w1": 5}}
        self.pages: Mapping[str, dict[str, int]] = {"master": {"receipts": 5}, "w1": {"receipts": 5}}
        self.database_error: StorageError | None = None
        self.doctor_error: StorageError | None = None
        self.complaints: list[Complaint] = []
        self.sessions: list[OpenTransaction] = []
        self.refuses_questions = False
        self.asked = 0
        self.answers: dict[Writer, int] = {}
        self.looks: list[str] = []
        self.is_closed = self.is_stopped = False
        self.steps: list[tuple[float, float]] = []

    def run(self, homeserver: Homeserver = SERVER, *, asks: bool = False) -> InspectionReport:
        """Inspect, as time goes by."""
        results: list[Any] = []
        one = Inspection(
            self.clock,
            homeserver,
            asks=asks,
            progress=lambda what, done, total: self.steps.append((done, total)),
        )
        Deferred.fromCoroutine(one.run()).addBoth(results.append)
        for _ in range(400):
            self.clock.advance(0.1)
        if isinstance(results[0], Failure):
            results[0].raiseException()
        report: InspectionReport = results[0]
        return report


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """All is well."""
    ends = Ends()

    class Listener:
        def __init__(self, *given: Any) -> None:
            """Nothing to connect."""

        def start(self) -> Deferred[None]:
            ends.looks.append("listens")
            return succeed(None)

        def stop(self) -> Deferred[None]:
            ends.is_stopped = True
            return succeed(None)

        def heard(self) -> Heard:
            return Heard(
                positions=ends.heard, since=-1.0, subscribers=2, asks=ends.asked, answers=ends.answers
            )

        async def query_redis(self) -> None:
            """They are two."""

        async def ask(self) -> None:
            if ends.refuses_questions:
                raise RedisRefused("NOPERM")
            ends.asked += 1

    class Viewer:
        def __init__(self, *given: Any) -> None:
            """Nothing to open."""

        def look(self, before: DatabaseLook | None) -> DatabaseLook:
            if ends.database_error is not None:
                raise ends.database_error
            ends.looks.append("database")
            positions = {stream: dict(writers) for stream, writers in ends.positions.items()}
            return DatabaseLook(
                at=ends.clock.seconds(),
                positions=positions,
                sequences={"receipts": 9},
                open_transactions=ends.sessions,
            )

        def close(self) -> None:
            ends.is_closed = True

    class Reader:
        def __init__(self, reactor: Any) -> None:
            """Nothing to open."""

        async def look_at(self, processes: Any) -> dict[str, MetricsLook]:
            ends.looks.append("metrics")
            at = ends.clock.seconds()
            return {one.name: MetricsLook(at=at, positions=ends.pages[one.name]) for one in processes}

    class Examination:
        def __init__(self, *given: Any, **more: Any) -> None:
            self.complaints = ends.complaints

        def examine(self) -> "Examination":
            if error := ends.doctor_error or ends.database_error:
                raise error
            return self

    for name, made in (
        ("ChannelMonitor", Listener),
        ("DatabaseViewer", Viewer),
        ("MetricsScraper", Reader),
        ("Doctor", Examination),
        ("open_database", lambda settings: None),
        ("deferToThread", maybeDeferred),
    ):
        monkeypatch.setattr(inspection, name, made)
    yield ends
    assert ends.is_closed
    assert ends.is_stopped is ("listens" in ends.looks)


def test_three_looks_in_fifteen_seconds(ends: Ends) -> None:
    """The listener is there before the first; metrics are read at the first and the last."""
    report = ends.run()

    assert (0, [], []) == (report.exit_code, list(report.findings), list(report.unseen))
    assert ["listens", "database", "metrics", "database", "database", "metrics"] == ends.looks
    assert [0.0, 5.0, 15.0] == pytest.approx([look.at for look in report.looks], abs=0.6)
    assert {"streams": 1, "writers": 1, "announced": 1, "processes": 2} == report.seen
    assert ends.asked == 0
    assert ends.steps[0][1] == 15.0


def test_a_process_that_stays_behind_is_found(ends: Ends) -> None:
    """A process stays where it is."""
    ends.pages = {"master": {"receipts": 9}, "w1": {"receipts": 5}}
    report = ends.run()

    assert 1 == report.exit_code
    assert [("not_received", "w1")] == [(one.kind, one.process) for one in report.findings]


def test_asking_shows_what_it_mended(ends: Ends) -> None:
    """What was found before the question and not after it."""
    ends.pages = {"master": {"receipts": 9}, "w1": {"receipts": 5}}

    def mend() -> None:
        ends.pages = {"master": {"receipts": 9}, "w1": {"receipts": 9}}

    ends.clock.callLater(18, mend)
    report = ends.run(asks=True)

    assert (0, 1) == (report.exit_code, ends.asked)
    assert [("not_received", "w1")] == [(one.kind, one.process) for one in report.mended]
    assert 4 == len(report.looks)


def test_an_answer_that_came_twice_is_asked_for_again(ends: Ends) -> None:
    """Only a second process explains it at both questions."""
    ends.answers = {Writer("caches", "w1"): 2}
    report = ends.run(asks=True)

    assert 2 == ends.asked
    assert [("name_twice", "w1")] == [(one.kind, one.process) for one in report.findings]


def test_a_question_that_is_refused_is_reported(ends: Ends) -> None:
    """Redis may forbid this user to publish."""
    ends.refuses_questions = True
    report = ends.run(asks=True)

    assert 3 == report.exit_code
    assert ["answers to REPLICATE"] == [one.what for one in report.unseen]


def test_a_database_that_fails_is_the_finding(ends: Ends) -> None:
    """Told once, and the other ends are looked at."""
    ends.database_error = StorageError(op="connect", why="refused", hint="start it")
    report = ends.run()

    assert (1, []) == (report.exit_code, list(report.unseen))
    assert [("database_unreachable", "start it")] == [(one.kind, one.remedy) for one in report.findings]
    assert report.seen["processes"] == 2


def test_a_database_that_failed_at_first_is_no_finding(ends: Ends) -> None:
    """What the doctor could not look at then is told."""
    ends.doctor_error = StorageError(op="connect", why="the database system is starting up")
    report = ends.run()

    assert (3, []) == (report.exit_code, list(report.findings))
    assert [("sequences", "the database system is starting up")] == [
        (one.what, one.why) for one in report.unseen
    ]


@pytest.mark.parametrize("is_found", [True, False])
def test_a_lock_that_kept_the_doctor_out_is_told_once(ends: Ends, is_found: bool) -> None:
    """By the finding that names its session, if it is still there."""
    ends.complaints = [
        Complaint(severity="error", kind="locked_out", stream="receipts", text="locked: receipts")
    ]
    locked = OpenTransaction(pid=8, program="psql", seconds=40.0, locked=("receipts_linearized",))
    ends.sessions = [locked] * is_found
    report = ends.run()

    assert ["waiting_for_lock"] * is_found == [one.kind for one in report.findings]
    assert ["locked: receipts"] * (not is_found) == [one.why for one in report.unseen]


def test_without_the_driver_nothing_is_inspected(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says what to install; that is nothing about the homeserver."""

    def missing(settings: DatabaseSettings) -> None:
        raise StorageError(op="open", why="PostgreSQL needs psycopg") from ImportError("psycopg")

    monkeypatch.setattr(inspection, "open_database", missing)
    with pytest.raises(StorageError, match="psycopg"):
        ends.run()
    ends.is_closed = True  # there was nothing to close


def test_an_inspection_that_sees_nothing_is_neither_well_nor_unwell(ends: Ends) -> None:
    """That is neither well nor unwell."""
    ends.heard = {}
    report = ends.run(msgspec.structs.replace(SERVER, processes=(), database=None))
    ends.is_closed = True  # there was nothing to close

    assert 2 == report.exit_code


def test_nobody_is_asked_without_redis(ends: Ends) -> None:
    """There is nothing to ask over."""
    report = ends.run(msgspec.structs.replace(SERVER, redis=None), asks=True)

    assert (0, 3) == (ends.asked, len(report.looks))
