"""What the daemon says about itself, to programs, people, probes and Prometheus."""

from typing import Any, Final
from unittest.mock import Mock, patch

from synrepl.base.access import LOCAL, Access
from synrepl.base.metrics import POSITION_WRITERS
from synrepl.base.problems import Problem
from synrepl.http_api.routes import OPENMETRICS, PROMETHEUS
from synrepl.replication.status import UNTOLD, build_status, states
from synrepl.replication.status_parts import NoIngest
from synrepl.rooms import rooms
from synrepl.wire.dialect import CURRENT
from synrepl.wire.grammar import Command
from tests.http.builders import BROKEN, SiteCase, receipt

GIB: Final = 1024**3


class FullConnection:
    """A follower's connection."""

    def write(self, data: bytes) -> None:
        """Take it."""

    def send(self, command: Command) -> None:
        """Take it."""

    def fail(self, why: str) -> None:
        """It never does."""

    def established(self) -> None:
        """It is."""

    def pause_reading(self) -> None:
        """It says nothing."""

    def resume_reading(self) -> None:
        """It says nothing."""


class StatusTests(SiteCase):
    """Honest, the worst part first, also while errors stand."""

    def follower(self, name: str) -> Any:
        """A follower has connected."""
        attached = self.publisher.attach(FullConnection())
        attached.name = name
        attached.dialect_known(CURRENT)
        return attached

    def test_recent_facts_of_some_streams_are_shown_newest_first(self) -> None:
        """Without their rows; an unknown stream is an error, so that no mistake looks like silence."""
        self.receipts(2)
        self.post("push_rules", [["@ada:hs"]])

        everything = self.get("/v1/recent").json()["facts"]
        newest = self.get("/v1/recent?streams=receipts&limit=1").json()["facts"]

        self.assertEqual(["push_rules", "receipts", "receipts"], [one["stream"] for one in everything])
        self.assertEqual([2], [one["serial"] for one in newest])
        self.assertEqual({"serial", "stream", "writer", "token", "rows", "at"}, set(newest[0]))
        self.assertEqual([], self.get("/v1/recent?streams=events").json()["facts"])
        self.assertEqual((404, "unknown_stream"), self.refusal("/v1/recent?streams=nonsense"))

    def refusal(self, path: str) -> tuple[int, str]:
        """The status and the code of a refused GET."""
        answer = self.get(path)
        return answer.status, answer.json()["error"]

    def test_status_says_where_the_daemon_stands(self) -> None:
        """Each key is in the contract."""
        self.receipts(2)
        self.clock.advance(5)

        status = self.get("/v1/status").json()

        streams, recent = status.pop("streams"), status.pop("recent")
        status.pop("version")
        self.assertEqual(recent[0]["at"], status.pop("last_fact_at"))
        self.assertEqual(
            {
                "role": "primary",
                "state": "serving",
                "errors": [],
                "warnings": [],
                "what_to_do": [],
                "facts_per_second": 0.4,
                "disk": None,
                "refused": {"facts": 0, "bytes": 0, "unkept": []},
                "server_name": "hs.example",
                "instance": "master",
                "epoch": 1,
                "serial": 2,
                "digest": self.log.head.digest,
                "trimmed_upto": 0,
                "history": self.log.history,
                "uuid": self.log.uuid,
                "holds": "",
                "epoch_starts": [],
                **{key: value for room in rooms() for key, value in room.absent_status.items()},
                "lag_rows": 0,
                "lag_seconds": 0.0,
                "followers": [],
                "redis": None,
                "following": [],
                "stuck": [],
                "uptime_seconds": 5.0,
            },
            status,
        )
        self.assertEqual({"writers": {"master": 2}, "kept": True}, streams["receipts"])
        self.assertEqual({"writers": {}, "kept": False}, streams["typing"])
        self.assertEqual(
            [(2, "receipts", 1), (1, "receipts", 1)],
            [(one["serial"], one["stream"], one["rows"]) for one in recent],
        )

    def test_a_status_has_each_write_that_was_answered(self) -> None:
        """Whoever asks twice in a second sees what happened in between: readers wait for a serial so."""
        for serial in range(1, 11):
            self.receipts(1)
            self.assertEqual(serial, self.get("/v1/status").json()["serial"])

    def test_the_worst_follower_gives_the_lag(self) -> None:
        """An average would hide the one that matters."""
        self.follower("well")
        self.follower("slow").pause()
        self.receipts(3)
        self.clock.pump([1.0] * 4)

        status = self.get("/v1/status").json()

        self.assertEqual(["slow", "well"], [one["name"] for one in status["followers"]])
        self.assertEqual([3, 0], [one["lag_rows"] for one in status["followers"]])
        self.assertEqual(3, status["lag_rows"])
        self.assertGreaterEqual(status["lag_seconds"], 3.0)

    def test_a_lag_begins_with_the_first_fact_that_is_behind(self) -> None:
        """A log that was idle for an hour does not make it an hour."""
        self.receipts(1)
        self.clock.pump([1.0] * 10)
        self.clock.pump([60.0] * 60)
        self.receipts(1)
        at_once = self.publisher.lag.seconds(1)
        self.clock.pump([1.0] * 10)
        later = self.publisher.lag.seconds(1)

        self.assertLessEqual(at_once, 60.0)  # the clock was moved on by a minute at once
        self.assertTrue(9.0 <= later <= 10.0, later)
        self.assertTrue(3_600 < self.publisher.lag.seconds(0))

    def test_a_failing_log_shows_everywhere(self) -> None:
        """And status still answers."""
        self.engine.fail_next(BROKEN)
        self.post("receipts", [receipt()])

        status = self.get("/v1/status").json()
        ready = self.get("/readyz")
        page = self.get("/status")

        self.assertEqual("failing", status["state"])
        self.assertIn("the disk is full", status["errors"][0]["what"])
        self.assertEqual((503, False), (ready.status, ready.json()["ready"]))
        self.assertIn("the disk is full", ready.json()["reasons"][0])
        self.assertIn(b"the disk is full", page.body)
        self.assertEqual(200, self.get("/livez").status)

    def test_the_root_leads_to_the_page(self) -> None:
        """Relative, so that it also does behind a proxy with a path of its own."""
        answer = self.get("/")

        self.assertEqual((302, "status"), (answer.status, answer.headers["location"]))

    def test_a_disk_that_is_nearly_full_is_told_before_it_is(self) -> None:
        """Below a tenth of a small disk, and below 1 GiB of a large one."""
        for free, disk, is_told in (
            (0.9 * GIB, 5 * GIB, False),
            (0.4 * GIB, 5 * GIB, True),
            (1.1 * GIB, 900 * GIB, False),
            (0.9 * GIB, 900 * GIB, True),
        ):
            usage = {"log_bytes": 5, "wal_bytes": 1, "free_bytes": int(free), "disk_bytes": disk}
            with patch.object(self.log, "disk_usage", lambda usage=usage: usage):
                found = self.built()

            self.assertEqual(is_told, any("when it is full" in one for one in found["warnings"]))
            self.assertEqual({**usage, "wal_held_seconds": 0.0, "wal_reader": ""}, found["disk"])

    def test_a_program_that_holds_the_wal_is_named(self) -> None:
        """With the time since it does."""
        usage = {"log_bytes": 5, "wal_bytes": 3 << 20, "free_bytes": GIB, "disk_bytes": GIB}
        checkpoints = Mock(held_seconds=90.0, oldest_reader="sqlite3 (process 7)")
        with (
            patch.object(self.log, "disk_usage", lambda: usage),
            patch.object(self.log, "checkpoints", checkpoints),
        ):
            found = self.built()
            limited = self.built(Access(streams=frozenset({"events"})))

        self.assertNotIn("sqlite3", str(limited))
        self.assertIn("another program keeps", str(limited["warnings"]))
        self.assertEqual(
            [
                (
                    "the -wal of the log has 3.0 MiB and grows: sqlite3 (process 7) keeps a transaction open"
                    " in the log's file, for 1 min 30 s; end it"
                )
            ],
            found["warnings"],
        )

    def test_a_limited_key_is_told_of_errors_that_there_are_some(self) -> None:
        """Their texts name files, keys of rows and addresses, whosever they are."""
        problems = [Problem("files: cannot fetch packages [1]", 7.0), Problem("http://rome is away", 5.0)]
        with patch.object(NoIngest, "problems", lambda _: problems):
            found = [self.built(access) for access in (LOCAL, Access(streams=frozenset({"events"})))]

        self.assertEqual([2, 1], [len(one["errors"]) for one in found])
        self.assertEqual([{"what": UNTOLD, "since": 5.0}], found[1]["errors"])
        self.assertEqual(["behind", "behind"], [one["state"] for one in found])

    def built(self, access: Access = LOCAL) -> dict[str, Any]:
        """The status."""
        return build_status(
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            ingest=NoIngest(),
            refused=self.refused,
            clock=self.clock,
            instance="master",
            server_name="hs.example",
            started_at=0.0,
            version="1",
            access=access,
        )

    def test_every_state_is_documented(self) -> None:
        """Programs compare it with words that they know."""
        self.assertIn(self.get("/v1/status").json()["state"], states())

    def test_the_page_escapes_what_others_named(self) -> None:
        """A follower chooses its own name."""
        self.follower("<script>alert(1)</script>")
        self.receipts(1, writer="<b>&")

        page = self.get("/status")

        self.assertEqual("text/html; charset=utf-8", page.headers["content-type"])
        self.assertNotIn(b"<script>alert", page.body)
        self.assertIn(b"&lt;script&gt;", page.body)
        self.assertIn(b"&lt;b&gt;&amp;", page.body)

    def test_readyz_is_ready(self) -> None:
        """A load balancer sends traffic on this word."""
        self.assertEqual({"ready": True}, self.get("/readyz").json())

    def test_metrics_show_the_first_writers_and_the_rest_together(self) -> None:
        """Writers name themselves; a scrape must not grow with them. The highest token of the rest shows
        whether any of them still writes."""
        for number in range(POSITION_WRITERS + 7):
            self.receipts(1, writer=f"w{number}")
        self.receipts(1, writer="(others)")

        text = self.get("/metrics").body.decode()

        series = [line for line in text.splitlines() if line.startswith("synrepl_stream_position{")]
        self.assertEqual(POSITION_WRITERS + 1, len(series))
        self.assertIn('synrepl_stream_position{stream="receipts",writer="w0"} 1.0', series)
        self.assertIn('synrepl_stream_position{stream="receipts",writer="(others)"} 108.0', series)

    def test_metrics_have_the_form_that_is_accepted(self) -> None:
        """OpenMetrics ends with a mark, by which a scraper sees that it has all."""
        for accept, kind, end in (
            ("application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5", OPENMETRICS, b"# EOF\n"),
            ("text/plain;version=0.0.4", PROMETHEUS, b"\n"),
            ("Application/OpenMetrics-Text", OPENMETRICS, b"# EOF\n"),
            ("*/*", PROMETHEUS, b"\n"),
        ):
            with self.subTest(accept):
                answer = self.ask("GET", "/metrics", b"", f"Accept: {accept}")
                self.assertEqual(kind, answer.headers["content-type"])
                self.assertEqual("accept", answer.headers["vary"])
                self.assertTrue(answer.body.endswith(end))
                self.assertEqual(kind == OPENMETRICS, b"# EOF" in answer.body)
                self.assertIn(b"synrepl_connections 0", answer.body)

    def test_metrics_are_fresh_when_scraped(self) -> None:
        """Positions and lag are read when they are asked for, not when they change."""
        self.follower("slow").pause()
        self.receipts(2)

        text = self.get("/metrics").body.decode()

        self.assertIn('synrepl_stream_position{stream="receipts",writer="master"} 2.0', text)
        self.assertIn("synrepl_replication_lag_rows 2.0", text)
