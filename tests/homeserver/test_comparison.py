"""What is found in looks, and what is not: each finding beside the healthy case that is nearest to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synrepl.homeserver.comparison import compare, unseen
from synrepl.homeserver.configuration import (
    DatabaseSettings,
    Homeserver,
    Process,
    RedisSettings,
    read_homeserver,
)
from synrepl.homeserver.consumers import BEHIND_EVENTS, WAITING_SECONDS, remarks
from synrepl.homeserver.findings import KINDS, Unseen
from synrepl.homeserver.looks import (
    Appservice,
    CommittedRow,
    Consumers,
    DatabaseLook,
    EventsProgress,
    FailingPushers,
    Heard,
    Look,
    MetricsLook,
    OpenTransaction,
    UnreadableRows,
)
from synrepl.streams.writer import Writer

SERVER = Homeserver(
    server_name="example.org",
    database=None,
    redis=RedisSettings(),
    processes=(
        Process(name="master", file="homeserver.yaml", secret_mark="m", duties=("federation",)),
        Process(name="w1", file="w1.yaml", secret_mark="m"),
        Process(name="w2", file="w2.yaml", secret_mark="m"),
    ),
    writers={"receipts": ("w1", "w2")},
    appservices=("bridge",),
)
CASES = Path(__file__).parent / "cases"
TIMES = (0.0, 5.0, 15.0)


def looks(
    *positions: int,
    sequences: tuple[int, ...] = (9, 9, 9),
    rows: tuple[CommittedRow, ...] = (),
    sessions: tuple[OpenTransaction, ...] = (),
    other: tuple[int, ...] = (4, 4, 4),
    **heard: Any,
) -> list[Look]:
    """Three looks at the stream receipts, of which w1 stores these positions, and w2 `other`."""
    return [
        Look(
            at=at,
            database=DatabaseLook(
                at=at,
                positions={"receipts": {"w1": position, "w2": others}},
                sequences={"receipts": sequence},
                rows=rows if at == 5.0 else (),
                open_transactions=sessions,
            ),
            heard=Heard(since=-1.0, **heard),
        )
        for at, position, others, sequence in zip(TIMES, positions, other, sequences, strict=True)
    ]


def found(*args: Any, **asked: Any) -> list[tuple[str, str, str]]:
    """Kind, stream and process of each finding."""
    findings = compare(*args, **asked)
    assert all(one.kind in KINDS and one.why and one.remedy for one in findings)
    return [(one.kind, one.stream, one.process or one.writer) for one in findings]


class TestNeverAnnounced:
    """Stored, and not said."""

    def test_a_position_that_moved_in_silence(self) -> None:
        """The first look's position was above all that was heard until the end."""
        assert [("never_announced", "receipts", "w1")] == found(SERVER, looks(5, 7, 8))

    def test_an_announcement_within_seconds_is_no_finding(self) -> None:
        """Synapse stores after it notifies, and the line may take some seconds."""
        assert [] == found(SERVER, looks(5, 7, 8, positions={"receipts": {"w1": 5}}))

    def test_an_idle_writer(self) -> None:
        """It says nothing without a reason."""
        assert [] == found(SERVER, looks(5, 5, 5))

    def test_an_idle_writer_that_was_asked(self) -> None:
        """It answered for other streams, and not for this one."""
        heard = {"caches": {"w1": 3}, "receipts": {"w2": 4}}
        asked = looks(5, 5, 5, answers={("caches", "w1"): 1}, positions=heard)

        assert [("never_announced", "receipts", "w1")] == found(SERVER, asked, has_asked=True)
        assert [] == found(SERVER, asked)

    def test_one_that_did_not_answer_at_all(self) -> None:
        """It may not run."""
        seen = looks(5, 5, 5, answers={("caches", "w2"): 1}, positions={"receipts": {"w2": 4}})

        assert [] == found(SERVER, seen, has_asked=True)

    def test_a_former_writer_with_a_position_is_found(self) -> None:
        """Its position stays in the database until the homeserver starts."""
        asked = looks(5, 5, 5, answers={("caches", "w1"): 1}, positions={"receipts": {"w2": 4}})
        without = msgspec.structs.replace(SERVER, writers={"receipts": ("w2",)})

        assert [] == found(without, asked, has_asked=True)

    def test_one_that_moved_after_the_second_look(self) -> None:
        """It is judged at the next."""
        assert [] == found(SERVER, looks(5, 5, 8))

    def test_without_redis_nothing_counts_as_unannounced(self) -> None:
        """Nothing could be heard; whether the processes hear each other was not seen."""
        seen = looks(5, 7, 8, trouble="the certificate is not trusted")
        (told,) = unseen(SERVER, seen)

        assert [] == found(SERVER, seen)
        assert "Redis" == told.what
        assert told.why.startswith("the certificate is not trusted: it is not reachable from here; whether")

    def test_a_stream_that_is_not_replicated(self) -> None:
        """Cross-signing keys have ids, and no stream."""
        others = [
            msgspec.structs.replace(
                look,
                database=DatabaseLook(
                    at=look.at, positions={"e2e_cross_signing_keys": {"w1": int(look.at)}}, sequences={}
                ),
            )
            for look in looks(1, 1, 1)
        ]

        assert [] == found(SERVER, others)


def measured(*pages: Mapping[str, MetricsLook], heard: Heard | None = None) -> list[Look]:
    """Looks at metrics only, 15 seconds apart."""
    return [
        Look(at=at, metrics=page, heard=heard) for at, page in zip((0.0, 15.0, 30.0), pages, strict=False)
    ]


def page(at: float, connections: int | None = 1, **positions: int) -> MetricsLook:
    """The metrics of a process."""
    return MetricsLook(at=at, positions=positions or None, connections=connections)


class TestNotReceived:
    """Said, and not there."""

    def test_a_process_below_what_others_had(self) -> None:
        """By the name of the process that is behind, with how much."""
        seen = measured(
            {"w1": page(0, receipts=9), "w2": page(0, receipts=5)},
            {"w1": page(15, receipts=12), "w2": page(15, receipts=5)},
        )
        (finding,) = compare(SERVER, seen)

        assert "in vain" not in finding.why
        assert ("not_received", "receipts", "w2", 4) == (
            finding.kind,
            finding.stream,
            finding.process,
            finding.count,
        )
        assert "does not move" in finding.why

    @pytest.mark.parametrize("position", [9, 11])
    def test_one_that_has_what_others_had_before(self, position: int) -> None:
        """What came since is on its way."""
        seen = measured(
            {"w1": page(0, receipts=9), "w2": page(0, receipts=5)},
            {"w1": page(15, receipts=12), "w2": page(15, receipts=position)},
        )

        assert [] == found(SERVER, seen)

    def test_caches_have_no_order(self) -> None:
        """Each writer counts for itself."""
        seen = measured(
            {"w1": page(0, caches=9), "w2": page(0, caches=5)},
            {"w1": page(15, caches=9), "w2": page(15, caches=5)},
        )

        assert [] == found(SERVER, seen)

    def test_a_release_without_the_gauge(self) -> None:
        """1.157 has none."""
        assert [] == found(SERVER, measured({"w1": page(0)}, {"w1": page(15)}))


class TestHeld:
    """Ids that go on, and a position that does not."""

    ROWS = (CommittedRow("receipts", "w1", 11), CommittedRow("receipts", "w1", 12))
    SESSION = OpenTransaction(
        pid=7, program="synapse-w1", seconds=20.0, waits_for=(8,), lock="receipts_linearized"
    )
    BLOCKED = ("held", "receipts", "w1")

    def test_rows_above_a_position_that_stands_still(self) -> None:
        """With the session that waits, and who blocks it."""
        seen = looks(9, 9, 9, sequences=(10, 12, 12), rows=self.ROWS, sessions=(self.SESSION,))
        finding, wait = compare(SERVER, seen)

        assert "waiting_for_lock" == wait.kind
        assert self.BLOCKED == (finding.kind, finding.stream, finding.writer)
        assert (
            "session 7 (synapse-w1) waits for a lock (receipts_linearized) that session 8 holds"
            in finding.why
        )
        assert "pg_terminate_backend(8)" in finding.remedy

    def test_a_position_that_moves(self) -> None:
        """It is busy."""
        heard = {"receipts": {"w1": 12}}
        seen = looks(9, 10, 11, sequences=(10, 12, 12), rows=self.ROWS, positions=heard)

        assert [] == found(SERVER, seen)

    def test_rows_of_another_writer(self) -> None:
        """The idle one waits for nothing."""
        heard = {"receipts": {"w1": 12}}
        seen = looks(
            9,
            9,
            9,
            sequences=(10, 12, 12),
            rows=(CommittedRow("receipts", "w2", 12),),
            other=(10, 12, 12),
            positions=heard | {"receipts": {"w2": 12}},
        )

        assert [] == found(SERVER, seen)

    def test_a_sequence_that_moves_under_an_open_transaction(self) -> None:
        """No row is committed yet."""
        seen = looks(9, 9, 9, sequences=(10, 12, 12), sessions=(self.SESSION,))

        assert ["held", "waiting_for_lock"] == [kind for kind, *_ in found(SERVER, seen)]

    @pytest.mark.parametrize(
        "sessions", [(), (msgspec.structs.replace(SESSION, seconds=3.0),)], ids=["none", "a young one"]
    )
    def test_a_sequence_above_all_positions(self, sessions: tuple[OpenTransaction, ...]) -> None:
        """Ids of a transaction that was rolled back, or that are kept in reserve."""
        assert [] == found(SERVER, looks(9, 9, 9, sequences=(10, 12, 12), sessions=sessions))

    def test_a_session_that_only_reads_holds_no_id(self) -> None:
        """A nightly copy, beside an id that was rolled back, and beside a writer that waits."""
        copy = OpenTransaction(pid=4242, program="pg_dump", seconds=3600.0, has_written=False)
        seen = looks(9, 9, 9, sequences=(10, 12, 12), rows=self.ROWS, sessions=(copy,))
        (finding,) = compare(SERVER, seen)

        assert [] == found(SERVER, looks(9, 9, 9, sequences=(10, 12, 12), sessions=(copy,)))
        assert "no transaction that wrote is open for as long" in finding.why
        assert "4242" not in finding.remedy

    def test_a_short_look(self) -> None:
        """Ten seconds are needed."""
        seen = looks(9, 9, 9, sequences=(10, 12, 12), rows=self.ROWS)[:2]

        assert [] == found(SERVER, seen)


class TestUnreachable:
    """What cannot be asked is what is wrong."""

    def test_a_database_that_cannot_be_asked(self) -> None:
        """Twice; once may be a moment, and is not seen then."""
        down = Look(at=0.0, database_trouble="postgresql://db: refused", database_hint="check that it runs")
        server = msgspec.structs.replace(SERVER, database=DatabaseSettings(path="/hs.db"))
        (finding,) = compare(server, [down, down, down])

        assert ("database_unreachable", "check that it runs") == (finding.kind, finding.remedy)
        assert "the database cannot be asked: postgresql://db: refused" == finding.why
        assert [] == unseen(server, [down, down], [finding])
        assert [] == compare(server, [down, Look(at=5.0), down])
        assert [("database", "postgresql://db: refused")] == [
            (one.what, one.why) for one in unseen(server, [Look(at=5.0), down])
        ]

    def test_a_redis_that_is_down_is_one_finding(self) -> None:
        """With its cause first, and the processes that have no connection to it."""
        off = {name: page(0, connections=0, receipts=1) for name in ("w1", "w2")}
        seen = measured(off, off, heard=Heard(trouble="127.0.0.1:6379: connection refused"))
        (finding,) = compare(SERVER, seen)

        assert ("redis_unreachable", 2) == (finding.kind, finding.count)
        assert finding.why.startswith(
            "Redis cannot be asked: 127.0.0.1:6379: connection refused; w1, w2 have"
        )
        assert [] == unseen(SERVER, seen, [finding])

    def test_a_redis_that_processes_are_connected_to_is_not_down(self) -> None:
        """It is not reachable from here; a process without a connection is one of its own."""
        seen = measured(
            {"w1": page(0, receipts=1), "w2": page(0, connections=0, receipts=1)},
            {"w1": page(15, receipts=1), "w2": page(15, connections=0, receipts=1)},
            heard=Heard(trouble="no such host"),
        )

        assert [("not_connected", "", "w2")] == found(SERVER, seen)
        rows = {Writer("receipts", "w1"): UnreadableRows(count=2, token=7, why="no Unicode text")}
        (unread,) = unseen(SERVER, [Look(at=0.0, heard=Heard(unreadable=rows))])
        assert "receipts of w1" == unread.what
        assert "2 rows on Redis cannot be read, the first at token 7: no Unicode text;" in unread.why
        assert [("Redis", "no such host")] == [(one.what, one.why) for one in unseen(SERVER, seen)]
        unknown = {"w1": page(0, connections=None, receipts=1)}
        assert [] == found(SERVER, measured(unknown, unknown, heard=Heard(trouble="no such host")))


class TestProcesses:
    """What processes and the channel show."""

    def test_a_process_that_does_not_answer(self) -> None:
        """Twice; once may be a busy moment."""
        silent = MetricsLook(at=0, trouble="no answer", is_silent=True)

        assert [("silent_process", "", "w1")] == found(SERVER, measured({"w1": silent}, {"w1": silent}))
        assert [] == found(SERVER, measured({"w1": silent}, {"w1": page(15)}))
        assert [] == found(SERVER, measured({"w1": page(0)}, {"w1": silent}))

    def test_a_process_without_redis(self) -> None:
        """Twice; once may be while it connects again."""
        off = page(0, connections=0)

        assert [("not_connected", "", "w1")] == found(SERVER, measured({"w1": off}, {"w1": off}))
        assert [] == found(SERVER, measured({"w1": off}, {"w1": page(15)}))
        assert [] == found(SERVER, measured({"w1": page(0)}, {"w1": off}))
        without = msgspec.structs.replace(SERVER, redis=None)
        assert [] == found(without, measured({"w1": off}, {"w1": off}))

    def test_a_process_that_has_lost_redis_runs(self) -> None:
        """It answers, so it is not said that it does not run; another that is missing is."""
        off, on = page(0, connections=0), page(15)
        pages = {"master": on, "w1": off, "w2": on}
        heard = Heard(subscribers=2)

        assert [("not_connected", "", "w1")] == found(SERVER, measured(pages, pages, heard=heard))
        gone = {**pages, "w2": MetricsLook(at=0, trouble="http://w2: no route to host")}
        findings = compare(SERVER, measured(gone, gone, heard=Heard(subscribers=1)))
        assert [("not_connected", "w1"), ("fewer_subscribers", "w2")] == [
            (one.kind, one.process) for one in findings
        ]
        assert findings[1].why == (
            "w2 does not run, or has lost its connection to Redis: all others show theirs, and"
            " 1 of the 3 processes in the files listen on Redis"
        )

    @pytest.mark.parametrize(("counts", "is_fewer"), [((2, 2), True), ((2, 3), False), ((3, 4), False)])
    def test_fewer_subscribers_than_processes(self, counts: tuple[int, int], is_fewer: bool) -> None:
        """At both counts. More are no harm: others may listen."""
        seen = [Look(at=float(n), heard=Heard(subscribers=count)) for n, count in enumerate(counts)]

        assert is_fewer is bool(found(SERVER, seen))

    def test_a_redis_that_is_a_replica(self) -> None:
        """With the address of its master; if it is the master, or does not say, nothing."""
        for master, kinds in (("10.0.0.1:6379", [("redis_replica", "", "")]), ("", [])):
            seen = [Look(at=float(n), heard=Heard(subscribers=9, replica_of=master)) for n in range(2)]

            assert kinds == found(SERVER, seen)
        (finding,) = compare(SERVER, [Look(at=0.0, heard=Heard(replica_of="10.0.0.1:6379"))] * 2)
        assert "the address of the master, 10.0.0.1:6379" in finding.remedy

    def test_the_process_that_does_not_run_is_named(self) -> None:
        """Its machine says that nothing listens there; another is the one that shows no connection."""
        gone = MetricsLook(at=0, trouble="http://w1: connection refused", is_refused=True)
        for subscribers, named in ((2, [("w1", 1)]), (1, [("w1", 1), ("master", 1)])):
            heard = Heard(subscribers=subscribers)
            up = page(0, receipts=1)
            seen = measured({"w1": gone, "w2": up}, {"w1": gone, "w2": up}, heard=heard)
            findings = compare(SERVER, seen)

            assert [("fewer_subscribers", *each) for each in named] == [
                (one.kind, one.process, one.count) for one in findings
            ]
            assert "w1 does not run: http://w1: connection refused" in findings[0].why
            assert "start w1" in findings[0].remedy
            assert [] == unseen(SERVER, seen, findings)
            assert ["metrics of w1"] == [one.what for one in unseen(SERVER, seen)]

    def test_one_sentence_says_what_only_a_process_that_is_down_does(self) -> None:
        """Which, for how long, why, and what nobody else writes and does."""
        master, w1, w2 = SERVER.processes
        w1 = msgspec.structs.replace(w1, writes=("receipts", "typing"), duties=("pushers",))
        w2 = msgspec.structs.replace(w2, writes=("receipts",))
        server = msgspec.structs.replace(SERVER, processes=(master, w1, w2))
        gone = MetricsLook(at=0, trouble="http://w1: connection refused", is_refused=True)
        pages = {"master": page(0), "w2": page(0), "w1": gone}
        (finding,) = compare(server, measured(pages, pages, heard=Heard(subscribers=2)))

        assert ("fewer_subscribers", "w1", 15.0) == (finding.kind, finding.process, finding.since_seconds)
        assert finding.why == (
            "w1 does not run: http://w1: connection refused, and 2 of the 3 processes in the files listen"
            " on Redis;"
            " only w1 writes typing and pushes"
        )
        assert finding.cost

    @pytest.mark.parametrize(
        ("releases", "process", "said"),
        [
            (("1.163.2", "1.163.1"), None, ""),
            (("1.151.0", "1.163.2"), "master", "the stream quarantined_media"),
            (("1.151.0", "1.163.2"), "master", "the stream profile_updates"),
            (("1.146.0 (b=x)", "1.145.0"), "w1", "the command CANCEL_TASK"),
            (("1.109.0", "1.110.0"), "master", "rows of device_lists in their new form"),
            (("1.111.0", "1.112.0"), "master", "cannot read anything less"),
            (("", "nonsense"), None, ""),
        ],
    )
    def test_mixed_releases(self, releases: tuple[str, str], process: str | None, said: str) -> None:
        """By what each page says of itself, with what the older cannot read."""
        pages = {
            name: msgspec.structs.replace(page(0), release=release)
            for name, release in zip(("master", "w1"), releases, strict=True)
        }
        findings = compare(SERVER, measured(pages, pages))

        assert [process] * (process is not None) == [one.process for one in findings]
        assert all("mixed_releases" == one.kind and said in one.why for one in findings)

    def test_a_writer_that_is_not_configured(self) -> None:
        """Any process may write caches."""
        seen = [
            Look(
                at=0.0,
                heard=Heard(
                    rows={Writer("receipts", "w3"): 2, Writer("receipts", "w1"): 1, Writer("caches", "w3"): 9}
                ),
            )
        ]

        assert [("unknown_writer", "receipts", "w3")] == found(SERVER, seen)

    def test_two_processes_of_one_name_answer_twice(self) -> None:
        """To each of two questions: one answer may be a POSITION of a writer that moved."""
        answers = {Writer("typing", "w1"): 2, Writer("to_device", "w1"): 2}
        twice = [Look(at=0.0, heard=Heard(answers=answers, asks=2))]
        once = [Look(at=0.0, heard=Heard(answers=answers, asks=1))]

        assert [("name_twice", "to_device", "w1")] == found(SERVER, twice, has_asked=True)
        assert [] == found(SERVER, once, has_asked=True)


class TestConfiguration:
    """What the files alone show."""

    def with_process(self, **changes: Any) -> Homeserver:
        """The homeserver with another w2."""
        changed = msgspec.structs.replace(SERVER.processes[2], **changes)
        return msgspec.structs.replace(SERVER, processes=(*SERVER.processes[:2], changed))

    def test_a_secret_of_its_own(self) -> None:
        """The one that is alone is named."""
        assert [("different_secrets", "", "w2")] == found(self.with_process(secret_mark="x"), [])

    def test_a_worker_without_redis(self) -> None:
        """Its file replaced the key."""
        assert [("no_redis", "", "w2")] == found(self.with_process(has_redis=False), [])

    def test_a_process_without_a_file(self) -> None:
        """Its settings are not known."""
        assert [] == found(self.with_process(file="", has_redis=False, secret_mark=""), [])

    def test_two_files_of_one_name(self) -> None:
        """By the name."""
        twice = msgspec.structs.replace(SERVER, twice={"w1": ("a.yaml", "b.yaml")})

        assert [("name_twice", "", "w1")] == found(twice, [])


def consumers(**changes: Any) -> list[Look]:
    """Two looks at the same consumers."""
    return [
        Look(at=at, database=DatabaseLook(at=at, positions={}, sequences={}, consumers=Consumers(**changes)))
        for at in (0.0, 15.0)
    ]


GONE = MetricsLook(at=0, trouble="refused", is_refused=True)


class TestWriterNotRunning:
    """All wait for a writer that is configured, and is not there."""

    @staticmethod
    def seen(
        *, first: int = 6, last: int = 6, w2: MetricsLook = GONE, sessions: tuple[OpenTransaction, ...] = ()
    ) -> list[Look]:
        """w1 stored 9 at the first look, w2 4; w1's own metrics say these positions of the stream."""
        return [
            Look(
                at=at,
                database=DatabaseLook(
                    at=at,
                    positions={"receipts": {"w1": 9, "w2": 4}},
                    sequences={},
                    open_transactions=sessions,
                ),
                metrics={"w1": page(at, receipts=position), "w2": w2},
            )
            for at, position in ((0.0, first), (15.0, last))
        ]

    def test_one_that_nobody_can_pass(self) -> None:
        """The id 7 was given up."""
        (finding,) = compare(SERVER, self.seen())

        assert ("writer_not_running", "receipts", "w2", 6, 3) == (
            finding.kind,
            finding.stream,
            finding.writer,
            finding.position,
            finding.count,
        )

    def test_one_that_holds_nobody_up(self) -> None:
        """Without a gap all go on, and are where w1 is."""
        assert [] == found(SERVER, self.seen(first=5))
        assert [] == found(SERVER, self.seen(first=9, last=9))

    def test_one_that_runs(self) -> None:
        """It says nothing of its metrics, or shows them."""
        assert [] == found(SERVER, self.seen(w2=MetricsLook(at=0, trouble="it answers 404")))
        assert [] == found(SERVER, self.seen(w2=page(0, receipts=6)))

    def test_one_that_is_no_writer(self) -> None:
        """It was one."""
        assert [] == found(msgspec.structs.replace(SERVER, writers={"receipts": ("w1",)}), self.seen())

    def test_an_id_in_flight(self) -> None:
        """A transaction that is open for so long may have it."""
        assert [] == found(SERVER, self.seen(sessions=(OpenTransaction(pid=1, program="", seconds=20.0),)))


class TestConsumers:
    """Those who read the events."""

    def test_an_appservice_that_is_down(self) -> None:
        """With the transactions that wait."""
        down = Appservice(name="bridge", is_down=True, first_waiting=3, last_waiting=5)
        (finding,) = compare(SERVER, consumers(appservices=[down]))

        assert ("appservice_down", "bridge", 3) == (finding.kind, finding.process, finding.count)

    def test_one_that_was_down_for_a_moment(self) -> None:
        """A transaction failed, and the next try did not."""
        before, after = (
            consumers(appservices=[Appservice(name="bridge", is_down=is_down)]) for is_down in (False, True)
        )

        assert [] == found(SERVER, [before[0], after[1]])
        assert [] == found(SERVER, [after[0], before[1]])

    def test_one_that_is_no_longer_configured(self) -> None:
        """Its rows stay in the database for ever."""
        assert [] == found(SERVER, consumers(appservices=[Appservice(name="gone", is_down=True)]))

    def test_one_whose_registration_cannot_be_read(self) -> None:
        """As it is in a container: what the database says counts."""
        server = msgspec.structs.replace(SERVER, appservices=None)
        down = Appservice(name="bridge", is_down=True, first_waiting=10, last_waiting=2009)
        behind = consumers(events=5_000, appservices_reader=EventsProgress(12, 7.0), appservices=[down])

        assert [("appservice_down", "", "bridge"), ("appservices_behind", "", "")] == found(server, behind)

    @pytest.mark.parametrize(
        ("case", "sender", "expected"),
        [
            ("duty-by-legacy-app", "fedsender1", [("federation_behind", "", "fedsender1")]),
            ("duty-by-legacy-app", "master", []),
            # Nobody sends: a position that the main process left behind is not its fault.
            ("duty-for-nobody", "master", []),
        ],
    )
    def test_a_sender_by_the_files(self, case: str, sender: str, expected: list[Any]) -> None:
        """An old worker_app makes one, too."""
        files = sorted((CASES / case).glob("*.yaml"))
        seen = consumers(events=6_008, federation={sender: EventsProgress(10, 7.0)})
        kinds = [one for one in found(read_homeserver(files), seen) if one[0] == "federation_behind"]

        assert expected == kinds

    def test_a_position_that_is_lost_has_a_statement(self) -> None:
        """With what it costs."""
        (finding,) = compare(SERVER, consumers(events=6_008, appservices_reader=EventsProgress(12, 7.0)))

        assert finding.cure.startswith("UPDATE appservice_stream_position SET stream_ordering")
        assert "sent to no application service" in finding.cost

    @pytest.mark.parametrize(("behind", "is_found"), [(BEHIND_EVENTS, True), (BEHIND_EVENTS - 1, False)])
    def test_the_sender_of_appservices(self, behind: int, is_found: bool) -> None:
        """It stands still, far behind."""
        seen = consumers(events=5_000, appservices_reader=EventsProgress(5_000 - behind, 0.0))

        assert is_found is bool(found(SERVER, seen))
        assert [] == found(msgspec.structs.replace(SERVER, appservices=()), seen)

    @pytest.mark.parametrize(
        "waiting", [(None, None, None), (None, None, 0.1)], ids=["none waits", "one came just now"]
    )
    def test_outliers_wait_for_nobody(self, waiting: tuple[float | None, ...]) -> None:
        """A join stores thousands of them, and no sender is told."""
        readers = [EventsProgress(100, one) for one in waiting]
        seen = [
            msgspec.structs.replace(
                consumers(events=5_000, appservices_reader=one, federation={"master": one})[0], at=at
            )
            for at, one in zip(TIMES, readers, strict=True)
        ]

        assert [] == found(SERVER, seen)

    def test_federation(self) -> None:
        """A sender that was removed is left out, and so is one that never sent."""
        readers = {"master": EventsProgress(100, 7.0), "gone": EventsProgress(1, 7.0)}
        seen = consumers(events=5_000, federation=readers)

        assert [("federation_behind", "", "master")] == found(SERVER, seen)
        master, *others = SERVER.processes
        silent = (msgspec.structs.replace(master, duties=()), *others)
        assert [] == found(msgspec.structs.replace(SERVER, processes=silent), seen)
        named = {"gone": ("federation_sender_instances in homeserver.yaml",)}
        assert ("federation_behind", "", "gone") in found(
            msgspec.structs.replace(SERVER, named=named),
            consumers(events=5_000, federation={"gone": readers["master"]}),
        )

    @pytest.mark.parametrize(
        ("highest", "waiting", "is_found"),
        [
            ((50, 60, 60), WAITING_SECONDS, True),
            ((50, 60, 60), WAITING_SECONDS - 1, False),
            ((50, 60, 60), None, False),
            ((50, 50, 60), WAITING_SECONDS, False),
            ((40, 60, 60), WAITING_SECONDS, False),
        ],
    )
    def test_an_event_that_waits_long(
        self, highest: tuple[int, ...], waiting: float | None, is_found: bool
    ) -> None:
        """Although a new one called the sender ten seconds ago. It rests below events without that."""
        seen = [
            Look(
                at=at,
                database=DatabaseLook(
                    at=at,
                    positions={},
                    sequences={},
                    consumers=Consumers(events=events, appservices_reader=EventsProgress(40, waiting)),
                ),
            )
            for at, events in zip(TIMES, highest, strict=True)
        ]
        findings = compare(SERVER, seen)

        assert [("appservices_behind", waiting, 10)] * is_found == [
            (one.kind, one.since_seconds, one.count) for one in findings
        ]

    def failing(self, host: str, position: int = 100) -> FailingPushers:
        """Pushers of this gateway."""
        return FailingPushers(
            host=host,
            example="app of @a:hs",
            count=2,
            failing_since=1_700_000_000.0,
            newest_since=1_700_000_000.0,
            lowest=EventsProgress(position, 300.0),
        )

    @pytest.mark.parametrize(
        ("hosts", "works", "is_found", "is_noted"),
        [
            (("a.org",), True, False, True),
            (("a.org", "b.org"), True, True, False),
            (("a.org",), False, True, False),
            ((), True, False, False),
            ((), False, False, False),
        ],
    )
    def test_pushers(self, hosts: tuple[str, ...], works: bool, is_found: bool, is_noted: bool) -> None:
        """One dead gateway is a note while pushers of others succeed."""
        seen = consumers(
            events=5_000, failing_pushers=[self.failing(host) for host in hosts], has_working_pushers=works
        )
        notes = remarks(SERVER, seen)

        assert [("pushers_failing", "", "")] * is_found == found(SERVER, seen)
        assert ["pushers_failing"] * is_noted == [one.kind for one in notes]
        for one in [*compare(SERVER, seen), *notes]:
            assert len(hosts) * 2 == one.count
            assert all(f"{host} (2, such as app of @a:hs)" in one.why for host in hosts)
            assert "up to 4900 ids behind" in one.why

    @pytest.mark.parametrize(("later", "is_found"), [(60.0, False), (-60.0, True)])
    def test_gateways_that_are_gone_while_others_are_pushed_to(self, later: float, is_found: bool) -> None:
        """Whoever was pushed to since shows that this homeserver reaches gateways."""
        hosts = ("ntfy.ada.org", "ntfy.bob.org")
        seen = consumers(
            events=5_000,
            failing_pushers=[self.failing(host) for host in hosts],
            has_working_pushers=True,
            pushed_at=1_700_000_000.0 + later,
        )

        assert [("pushers_failing", "", "")] * is_found == found(SERVER, seen)
        assert ["pushers_failing"] * (not is_found) == [one.kind for one in remarks(SERVER, seen)]

    def test_an_outage_at_gateways_with_a_pusher_that_is_long_gone(self) -> None:
        """Most gateways of a large homeserver have one: that others succeeded since tells nothing."""
        failing = [
            msgspec.structs.replace(self.failing(host), failing_since=1_600_000_000.0)
            for host in ("a.org", "b.org")
        ]
        seen = consumers(
            events=5_000,
            failing_pushers=failing,
            has_working_pushers=True,
            pushed_at=1_700_000_000.0 - 60.0,
        )

        assert [("pushers_failing", "", "")] == found(SERVER, seen)

    def test_pushers_that_fail_and_are_not_behind(self) -> None:
        """A pusher without news is at an old position."""
        each = [self.failing(host, 5_000) for host in ("a.org", "b.org")]
        seen = consumers(events=5_000, failing_pushers=each)

        assert ([], []) == (found(SERVER, seen), remarks(SERVER, seen))
        assert [] == remarks(SERVER, [])
        assert [] == found(
            msgspec.structs.replace(SERVER, pushes=False), consumers(events=9_000, failing_pushers=each)
        )


def test_a_port_that_may_be_mapped_is_noted_at_a_live_homeserver(tmp_path: Path) -> None:
    path = tmp_path / "homeserver.yaml"
    path.write_text(
        "server_name: x\ninstance_map: {main: {host: hs.svc, port: 80}}\n"
        "listeners: [{port: 9093, type: http, resources: [{names: [replication]}]}]\n"
    )
    server = read_homeserver([path])

    assert [] == found(server, [])
    assert "wrong_port" in [one.kind for one in remarks(server, [])]


def test_processes_of_a_release_that_is_not_known(tmp_path: Path) -> None:
    """They run with a key that no known release has: it is none that is refused."""
    path = tmp_path / "homeserver.yaml"
    path.write_text("server_name: x\nstream_writers: {rooms_new: master}\n")
    server = read_homeserver([path])
    seen = [
        Look(at=at, metrics={"master": msgspec.structs.replace(page(0), release="1.170.0")}) for at in TIMES
    ]

    assert [] == found(server, seen)
    assert ["newer_release"] == [one.kind for one in remarks(server, seen) if "1.170" in one.why]


def test_unseen_streams_are_reported_with_the_reason() -> None:
    """By what, and why."""
    server = msgspec.structs.replace(SERVER, unread=(Unseen(what="configuration", why="a note"),))
    last = Look(
        at=0.0,
        heard=Heard(trouble="refused"),
        metrics={"w1": MetricsLook(at=0, trouble="off"), "w2": page(0, receipts=1)},
    )

    assert [("configuration", "a note"), ("Redis", "refused"), ("metrics of w1", "off")] == [
        (one.what, one.why) for one in unseen(server, [last])
    ]


def test_positions_that_are_not_shown() -> None:
    """Before 1.163 nobody can give them: it is a note, and the rest was seen."""
    old, lacking, whole = (
        msgspec.structs.replace(one, release=release)
        for one, release in ((page(0), "1.157.1"), (page(0), "1.163.2"), (page(0, receipts=1), "1.163.2"))
    )
    looks = [Look(at=0.0, metrics={"w1": old, "w2": old, "w3": lacking, "master": whole})]
    (told,), (noted,) = unseen(SERVER, looks), remarks(SERVER, looks)

    assert "positions of w3" == told.what
    assert "1.163.2 have none" in told.why
    assert ("no_positions", 2) == (noted.kind, noted.count)
    assert "w1 and w2 (1.157.1) have no positions" in noted.why
    assert [] == unseen(SERVER, [Look(at=0.0, metrics={"w1": old})])
