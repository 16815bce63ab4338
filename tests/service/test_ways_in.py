"""Every way in, and every stream that the daemon reads as its own state: nothing of it is stored.

A stream that the daemon itself writes has one way in. A fact of another stream goes in beside each forged
one: the control."""

import json
from collections.abc import Callable
from itertools import product
from typing import Any, Final

from synrepl.config import Settings
from synrepl.errors import StorageError
from synrepl.ingest.channel_host import IChannelHost
from synrepl.ingest.source_manager import SourceManager
from synrepl.ingest.write_policy import WritePolicy
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import MissedFacts
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.streams.facts import NO_ROWS
from synrepl.transports.credentials import Credentials
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialect import CURRENT
from synrepl.wire.rdata_runs import RdataRun
from tests.http.builders import SiteCase
from tests.ingest.test_ingester import Line

FORGED: Final[dict[str, list[Any]]] = {
    "promises": ["acks", ["1"], []],
    "atomic_appends": [1000],
    "declarations": ["evil", [], "kept", None, []],
}
"""The streams that the daemon alone writes, each with a row."""

FILE: Final[list[Any]] = ["create", "a.txt", "0" * 64, 1]
"""A row of `files`, which appends may write, and nothing else."""

WRITERS: Final = ("stranger", "master", "earlier")
"""A stranger's name, that of this primary, and that of the primary before it."""

CONTROL: Final = "push_rules"

Feed = Callable[[str, str, list[Any], int], None]
"""Brings a row of this stream and writer, under this token, if the way in has tokens."""


class WaysInTests(SiteCase):
    """A primary with everything that brings facts. The log has a fact of an earlier primary."""

    def setUp(self) -> None:
        super().setUp()
        self.token = 100
        self.wait(self.log.epochs.begin_next("promoted"))

    # -- the ways in -----------------------------------------------------------------------------------------

    def appends(self) -> dict[str, Feed]:
        """Those that give tokens."""

        def body(stream: str, writer: str, row: list[Any]) -> dict[str, Any]:
            return {"stream": stream, "writer": writer, "facts": [[row]]}

        def one(stream: str, writer: str, row: list[Any], token: int) -> None:
            self.post(stream, [row], writer=writer)

        def batch(stream: str, writer: str, row: list[Any], token: int) -> None:
            self.ask("POST", "/v1/facts", json.dumps({"appends": [body(stream, writer, row)]}).encode())

        def atomic(stream: str, writer: str, row: list[Any], token: int) -> None:
            posted = {"appends": [body(stream, writer, row)], "atomic": True}
            self.ask("POST", "/v1/facts", json.dumps(posted).encode())

        def lines(stream: str, writer: str, row: list[Any], token: int) -> None:
            posted = json.dumps(body(stream, writer, row)).encode() + b"\n"
            self.ask("POST", "/v1/appends", posted, "Content-Type: application/x-ndjson")

        return {"an append": one, "a batch": batch, "an atomic batch": atomic, "a stream of appends": lines}

    def sources(self) -> dict[str, Feed]:
        """Those that bring tokens: Redis, a followed server, missed facts, and tables."""
        on_redis, followed = self.manager(redis="redis://h"), self.manager(follow=["tcp:h:1"])
        assert on_redis.channel is not None
        member = on_redis.channel.member
        member.use(Line())
        member.subscriber_up()
        member.publisher_up()
        follower = followed.servers[0].follower
        follower.server.connected(Line(), CURRENT)

        def row_of(receive: Callable[[list[Any]], None], *, is_run: bool = False) -> Feed:
            def feed(stream: str, writer: str, row: list[Any], token: int) -> None:
                text = json.dumps(row).encode()
                receive([Position(stream=stream, instance=writer, prev_token=token - 1, token=token - 1)])
                if is_run:
                    receive([RdataRun(stream, writer, [token], [text])])
                else:
                    receive([Rdata(stream=stream, instance=writer, token=token, row=text)])

            return feed

        def silence(stream: str, writer: str, row: list[Any], token: int) -> None:
            follower.server.received(
                [Position(stream=stream, instance=writer, prev_token=token, token=token)]
            )

        def missed(stream: str, writer: str, row: list[Any], token: int) -> None:
            fact = (token, [json.dumps(row).encode()])

            class Answers:
                async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
                    return MissedFacts(facts=[fact], upto=upto, limited=False)

            behind = Follower(
                instance="us",
                clock=self.clock,
                streams=self.table,
                catch_up=Answers(),
                start="earliest",
                canonical=True,
            )
            followed.ingester.attach(behind)
            behind.server.connected(Line(), CURRENT)
            behind.server.received([Position(stream=stream, instance=writer, prev_token=0, token=token)])
            self.pass_time()

        def table(stream: str, writer: str, row: list[Any], token: int) -> None:
            self.log.append_assigned(stream, [(writer, token, json.dumps([row]).encode())]).addErrback(
                lambda failure: failure.trap(StorageError)
            )

        return {
            "Redis": row_of(member.received),
            "a followed server": row_of(follower.server.received),
            "a run of a followed server": row_of(follower.server.received, is_run=True),
            "a POSITION": silence,
            "missed facts": missed,
            "a table": table,
        }

    def manager(self, *, host: IChannelHost | None = None, **settings: Any) -> SourceManager:
        made = SourceManager(
            Settings.build({"instance_name": "master", **settings}),
            self.clock,
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            metrics=self.metrics,
            write_policy=WritePolicy((), instance="master", table=self.table),
            credentials=Credentials(),
            refused=RefusedFacts(self.log, self.table, self.metrics, instance="master"),
            history_lost=lambda stream: None,
            host=host,
        )
        self.addCleanup(made.ingester.stop)
        return made

    def pass_time(self) -> None:
        self.clock.pump([0.2] * 20)

    def stored(self, stream: str) -> list[tuple[str, int]]:
        """Writer and token of each fact of a stream, without the marks of the atomic batches here."""
        return [
            (fact.writer, fact.token)
            for fact in self.engine.facts
            if fact.stream == stream and fact.rows != b"[[1]]"
        ]

    # -- what comes of it ------------------------------------------------------------------------------------

    def walk(self, ways: dict[str, Feed], stream: str, row: list[Any]) -> None:
        for (way, feed), writer in product(ways.items(), WRITERS):
            with self.subTest(way=way, stream=stream, writer=writer):
                self.token += 10
                before = len(self.stored(CONTROL))
                feed(stream, writer, row, self.token)
                feed(CONTROL, writer, ["@ada:hs"], self.token)
                self.pass_time()

                self.assertEqual([], self.stored(stream))
                self.assertLess(before, len(self.stored(CONTROL)))

    def test_the_daemons_own_streams_have_no_other_way_in(self) -> None:
        """Else a forged promise lets an acknowledged fact be lost, and a forged mark stops the replicas."""
        for stream, row in FORGED.items():
            self.walk({**self.appends(), **self.sources()}, stream, row)

    def test_files_are_appended_only(self) -> None:
        """A publisher of another right must not name, or delete, files."""
        self.walk(self.sources(), "files", FILE)
        self.assertEqual(200, self.post("files", [FILE], writer="anybody").status)

    def test_refused_rows_are_counted_and_one_of_the_daemon_is_stored(self) -> None:
        """An operator sees that somebody forges; and the daemon's own code has its way in."""
        follow = self.sources()["a followed server"]
        follow("promises", "stranger", FORGED["promises"], 7)

        self.assertEqual(2, self.metrics.facts_refused.labels("promises").value)
        self.assertEqual(200, self.ask("POST", "/v1/streams", b'{"name":"packages"}').status)
        self.assertEqual([("master", 1)], self.stored("declarations"))

    def test_an_ordinary_silence_is_stored(self) -> None:
        """The control of a POSITION, which has no rows."""
        self.sources()["a POSITION"](CONTROL, "w1", [], 5)
        self.pass_time()

        self.assertEqual([NO_ROWS], [fact.rows for fact in self.engine.facts if fact.stream == CONTROL])
