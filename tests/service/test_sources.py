"""What a daemon hears from several servers: each fact once, and what may go back from one of them alone."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import Logger

from synrepl.base.metrics import Metrics
from synrepl.base.problems import Problem
from synrepl.config import Settings
from synrepl.daemon.ingest import Ingest
from synrepl.ingest.redis import RedisSource
from synrepl.ingest.source import PATIENCE_SECONDS
from synrepl.ingest.source_manager import SourceManager
from synrepl.ingest.write_policy import WritePolicy
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.follower.updates import MissedFacts
from synrepl.replication.hooks import Alone
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.catalog import takes
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.origin import Origin
from synrepl.streams.table import StreamTable
from synrepl.transports.credentials import Credentials
from tests.memory_engine import FaultyEngine

TABLE = StreamTable.default()


class BroughtWhole:
    """An `IFactSource` that brings these streams whole, and no missing facts."""

    missed_streams: tuple[str, ...] = ()

    def __init__(self, streams: tuple[str, ...]) -> None:
        self.streams = self.whole_streams = streams

    def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Nobody asks."""
        raise NotImplementedError


def sources(*servers: str, tables: tuple[str, ...] = (), redis: str | None = None) -> SourceManager:
    """Those of a daemon that follows these servers, and this Redis."""
    reactor: Any = MemoryReactorClock()
    settings = Settings.build({"follow": list(servers), "redis": redis})
    metrics = Metrics(CollectorRegistry())
    log = Log(
        FaultyEngine(),
        ImmediateThread(),
        ImmediateThread(),
        reactor,
        ephemeral=[stream.name for stream in TABLE if stream.ephemeral],
        logger=Logger(),
    )
    Deferred.fromCoroutine(log.start())
    return SourceManager(
        settings,
        reactor,
        log=log,
        publisher=Publisher(log, TABLE, reactor, metrics, instance="w"),
        table=TABLE,
        metrics=metrics,
        write_policy=WritePolicy((), instance="w", table=TABLE, tables=tables),
        fact_sources=[BroughtWhole(tables)],
        credentials=Credentials(),
        refused=RefusedFacts(log, TABLE, metrics, instance="w"),
        history_lost=lambda stream: None,
    )


def names(made: SourceManager) -> list[set[str]]:
    """The streams that are heard from each server."""
    return [{stream.name for stream in server.follower.table} for server in made.servers]


def test_what_may_go_back_is_heard_from_the_first_server_alone() -> None:
    """Of what is kept a token says whether it is here already; that of typing does not."""
    ephemeral = {stream.name for stream in TABLE if stream.ephemeral}

    first, second = names(sources("tcp:a:1", "tcp:b:2"))

    assert {stream.name for stream in TABLE if takes(stream.name, Origin.SOURCE)} == first
    assert "typing" in ephemeral
    assert first - ephemeral == second


def test_a_daemon_that_is_behind_a_server_says_by_how_much() -> None:
    """Operators page on it: 0 would keep the alarm silent."""
    made = sources("tcp:a:1", "tcp:b:2")
    ingest = Ingest(
        Settings.build({"follow": ["tcp:a:1", "tcp:b:2"]}),
        made.clock,
        log=made.log,
        publisher=made.publisher,
        table=TABLE,
        metrics=made.metrics,
        credentials=made.credentials,
        declared=DeclaredStreams(made.log, DaemonStreams(TABLE), instance="w"),
        refused=made.refused,
        role=Alone(),
        history_lost=made.history_lost,
        on_failure=pytest.fail,
    )
    without = ingest.lag_rows()
    ingest.sources = made

    in_step = ingest.lag_rows()
    for server, upto in zip(made.servers, (5, 9), strict=True):
        server.follower.server.streams.executor(TABLE["receipts"]).machine.gaps.open("w1", 0, upto)

    assert (0, 0, 9) == (without, in_step, ingest.lag_rows())


def test_what_is_read_from_tables_is_heard_from_nobody() -> None:
    """Its facts are taken in the order of ids, which a server could get ahead of."""
    heard = names(sources("tcp:a:1", "tcp:b:2", tables=("receipts",)))

    assert [False, False] == ["receipts" in one for one in heard]


def test_a_redis_that_is_away_is_a_problem_after_some_seconds() -> None:
    """At the start there is no connection yet, which is no news."""
    made = sources(redis="redis://h")
    clock: Any = made.clock

    clock.advance(PATIENCE_SECONDS - 1)
    before = made.problems()
    clock.advance(1)

    assert [] == before
    why = "cannot receive from Redis at redis://h: no answer yet"
    assert [Problem(why, 0.0, not_ready=True)] == made.problems()


def test_a_redis_that_is_a_replica_is_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is received there, so the daemon is ready; nobody else hears what it publishes."""
    made = sources(redis="redis://h")
    assert [] == made.notices()
    assert isinstance(made.channel, RedisSource)
    state = msgspec.structs.replace(made.channel.link.state(), replica_of="10.0.0.1:6379")
    monkeypatch.setattr(made.channel.link, "state", lambda: state)

    (notice,) = made.notices()

    assert notice.text == (
        "Redis at redis://h is a replica of 10.0.0.1:6379: what this process publishes there does not reach"
        " those who subscribe at the master"
    )
    assert "address of the master" in notice.what_to_do[0]
    assert [] == made.problems()
