"""The source and the sink on Spark, with a real daemon."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from synrepl.http_api.routes import APPEND, DECLARE
from synrepl.http_client import BlockingClient
from synrepl.pipeline.jobs import explain_failure
from synrepl.pipeline.source.data_source import progress, register
from synrepl.pipeline.typed import typed
from synrepl.streams.facts import Fact
from synrepl.wire import jsontext
from tests.pipeline.clusters import connect_server, run_python
from tests.processes.loading import changelog
from tests.processes.replicas import fill
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAMS = ("events", "receipts", "push_rules")
OFFSET = {"version": 1, "epoch": 1, "serial": 5, "digest": "1" * 64, "history": ""}

BY_VALUE = """
import json, sys
from pyspark import SparkContext
from synrepl.pipeline.session import session
from synrepl.pipeline.source.data_source import register

remote, url, folder = sys.argv[1:]
spark = session(app="by value", remote=remote)
register(spark)
rows = spark.read.format("synrepl").options(url=url, columns="serial,stream,row").load()
counts = {row["stream"]: row["count"] for row in rows.groupBy("stream").count().collect()}
typed = spark.read.format("synrepl").options(url=url, stream="receipts", columns="serial,user_id").load()
users = typed.where("user_id IS NOT NULL").count()
stream = spark.readStream.format("synrepl").options(url=url, columns="serial,row", maxOffsetsPerTrigger="900")
query = (
    stream.load().writeStream.format("parquet").option("path", folder + "/out")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
count = spark.read.parquet(folder + "/out").count()
zone = spark.conf.get("spark.sql.session.timeZone")
spark.stop()
print(json.dumps([counts, users, count, zone, SparkContext._gateway is None]))
"""

NOTHING_OF_OURS = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "synrepl":
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Nothing())
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with 3,000 facts; each test reads from where it is when that begins."""
    folder = tmp_path_factory.mktemp("daemon")
    fill(folder / "synrepl.db", 3_000, streams=STREAMS)
    with Daemon(folder) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def ours(spark: "SparkSession") -> "SparkSession":
    """The session, which knows the source."""
    register(spark)
    return spark


def held(daemon: Daemon) -> list[Fact]:
    """All facts of the daemon."""
    return list(changelog(daemon.url))


def post(daemon: Daemon, *users: str, writer: str = "master") -> None:
    """Append a fact for each user."""
    facts = [[[f"@{user}:h"]] for user in users]
    body = json.dumps({"facts": facts, "writer": writer}).encode()
    BlockingClient(daemon.url).json(APPEND.request("push_rules"), body)


def read(spark: "SparkSession", daemon: Daemon, **options: str) -> "DataFrame":
    """``spark.read``."""
    return spark.read.format("synrepl").options(**{"url": daemon.url, **options}).load()


class TestBatch:
    """A closed range, as rows."""

    def test_rows_are_those_of_the_facts(self, ours: "SparkSession", daemon: Daemon) -> None:
        """Byte by byte, each once, however many tasks read them; keys are those of the streams."""
        facts = held(daemon)

        found = read(ours, daemon, minPartitions="3").orderBy("serial", "seq").collect()

        expected = [
            (fact.serial, fact.stream, fact.token, seq, row.decode(), fact.digest)
            for fact in facts
            for seq, row in enumerate(jsontext.split(fact.rows))
        ]
        assert expected == [
            (row.serial, row.stream, row.token, row.seq, row.row, row.digest) for row in found
        ]
        assert facts[0].committed_at_ms == round(found[0].committed_at.timestamp() * 1000)
        assert all(row.key is not None for row in found)

    def test_options_choose_what_the_daemon_sends_and_filters_what_spark_keeps(
        self, ours: "SparkSession", daemon: Daemon
    ) -> None:
        """Both give the same rows. A filter stays in the plan of the query in which it stands."""
        facts = held(daemon)
        columns = "serial,stream,writer,row"
        rows = read(ours, daemon, columns=columns)
        wanted = rows.where(
            "stream in ('events', 'nope') and serial > 100 and serial <= 400 and row like '%7~%'"
        )
        chosen = read(
            ours, daemon, columns=columns, streams="events", startingOffsets="100", endingOffsets="400"
        )

        found = {row.serial for row in wanted.collect()}

        assert found == {
            fact.serial
            for fact in facts[100:400]
            if fact.stream == "events" and any(b"7~" in row for row in jsontext.split(fact.rows))
        }
        assert found == {row.serial for row in chosen.where("row like '%7~%'").collect()}
        plan = wanted._jdf.queryExecution().executedPlan().toString()
        assert "serial" in plan.partition("Filter")[2].partition("\n")[0]

    def test_offsets_choose_a_range(self, ours: "SparkSession", daemon: Daemon) -> None:
        """Serials, words, or tokens; an empty range has no rows."""

        def serials(**options: str) -> list[int]:
            rows = read(ours, daemon, columns="serial,seq", **options).where("seq = 0").collect()
            return sorted(row.serial for row in rows)

        assert [11, 12] == serials(startingOffsets="10", endingOffsets="12")
        assert [] == serials(startingOffsets="latest")
        tokens = json.dumps({name: {"master": 999} for name in STREAMS})
        later = [fact.serial for fact in held(daemon) if fact.stream in STREAMS and fact.token > 999]
        assert later == serials(startingOffsets=tokens)

    def test_mistakes_are_told_in_a_line(self, ours: "SparkSession", daemon: Daemon) -> None:
        """Out of the many in which Spark wraps them."""
        for options, expected in (
            ({"columns": "rows"}, "there is no column 'rows'"),
            ({"startingOffsets": "99999999"}, "ahead_of_log"),
            ({"streams": "nope"}, "unknown_stream"),
            ({"startingOffsets": json.dumps({**OFFSET, "history": "other"})}, "other_history"),
            ({"startingOffsets": json.dumps(OFFSET)}, "the histories differ at serial 5 or earlier"),
            ({"url": "http://127.0.0.1:1", "retrySeconds": "0"}, "no usable response from"),
        ):
            with pytest.raises(Exception) as caught:  # noqa: PT011  # Spark's own, of many kinds
                read(ours, daemon, **{"columns": "serial", **options}).count()
            said = explain_failure(caught.value)
            assert expected in said
            assert "\n" not in said


def test_replicas_share_the_ranges(ours: "SparkSession", daemon: Daemon, tmp_path: Path) -> None:
    """Also one that is still behind, and one that is away: each row is read once."""
    facts = held(daemon)
    with Daemon(tmp_path, options=("--upstream", daemon.url)) as replica:
        url = f"http://127.0.0.1:1, {daemon.url}, {replica.url}"

        rows = read(ours, daemon, url=url, endingOffsets=str(facts[-1].serial), minPartitions="5")
        found = rows.where("seq = 0").orderBy("serial").collect()

    assert [(fact.serial, fact.digest) for fact in facts] == [(row.serial, row.digest) for row in found]


class TestTyped:
    """One stream, with columns of its own."""

    def test_columns_are_those_of_the_declaration(self, ours: "SparkSession", daemon: Daemon) -> None:
        """Beside the row as it is, in a batch and in a stream; SQL over the untyped form finds the same."""
        found = read(ours, daemon, stream="receipts", minPartitions="2").orderBy("serial", "seq")
        lines = [row.asDict() for row in found.collect()]

        assert [json.loads(line["row"])[2] for line in lines] == [line["user_id"] for line in lines]
        assert len(lines) == sum(
            len(jsontext.split(fact.rows)) for fact in held(daemon) if fact.stream == "receipts"
        )
        untyped = typed(read(ours, daemon), "receipts").orderBy("serial", "seq")
        assert lines == [row.asDict() for row in untyped.collect()]

        live = ours.readStream.format("synrepl").options(url=daemon.url, stream="receipts").load()
        assert found.schema == live.schema
        query = (
            live.select("serial", "user_id")
            .writeStream.format("memory")
            .queryName("live_receipts")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        streamed = ours.table("live_receipts").orderBy("serial", "user_id").collect()
        assert sorted((line["serial"], line["user_id"]) for line in lines) == [tuple(row) for row in streamed]

    def test_a_stream_of_ones_own_has_its_columns(self, ours: "SparkSession", daemon: Daemon) -> None:
        """As the daemon declares it; one that nobody declared is an error in a line."""
        client = BlockingClient(daemon.url)
        declared = {"name": "packages", "key": "name", "columns": {"name": "str", "size": "int?"}}
        client.json(DECLARE.request(), json.dumps(declared).encode())
        facts = {"facts": [[["twisted", 5]], [["attrs", None]]], "writer": "master"}
        client.json(APPEND.request("packages"), json.dumps(facts).encode())

        rows = read(ours, daemon, stream="packages", columns="name,size,row").orderBy("name").collect()

        assert [("attrs", None, '["attrs",null]'), ("twisted", 5, '["twisted",5]')] == [*map(tuple, rows)]
        with pytest.raises(Exception, match="no declared stream 'nope'") as caught:
            read(ours, daemon, stream="nope")
        assert "\n" not in explain_failure(caught.value)


class TestStream:
    """What comes, in micro-batches."""

    def test_batches_are_bounded_and_a_restart_goes_on(
        self, ours: "SparkSession", daemon: Daemon, tmp_path: Path
    ) -> None:
        """A checkpoint wins over `startingOffsets`; a writer that appears meanwhile is read as well."""
        counts: list[int] = []

        def run(**options: str) -> Any:
            query = (
                ours.readStream.format("synrepl")
                .options(url=daemon.url, columns="serial,seq", **options)
                .load()
                .where("seq = 0")
                .writeStream.foreachBatch(lambda rows, _: counts.append(rows.count()))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert query.exception() is None
            return query.lastProgress

        head = held(daemon)[-1].serial
        told = run(maxOffsetsPerTrigger="1100")
        post(daemon, "a", "b", "c", writer="newcomer")
        run(maxOffsetsPerTrigger="2", startingOffsets="earliest")

        assert [1100, 1100, head - 2200, 2, 1] == counts
        behind = progress(told, 0)
        assert behind is not None
        assert (0, 0.0) == (behind.facts, behind.seconds)
        offset = json.loads((tmp_path / "checkpoint" / "offsets" / "4").read_text("utf-8").splitlines()[-1])
        assert (1, head + 3) == (offset["version"], offset["serial"])
        assert {"master", "newcomer"} == set(offset["clock"]["push_rules"])

    def test_another_log_under_the_same_address_is_refused(
        self, ours: "SparkSession", daemon: Daemon, tmp_path: Path
    ) -> None:
        """A daemon that was restored to something else must not be read on as if nothing had happened."""
        offset = json.dumps({**OFFSET, "history": "other"})
        query = (
            ours.readStream.format("synrepl")
            .options(url=daemon.url, columns="serial", startingOffsets=offset)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

        with pytest.raises(Exception, match="other_history"):
            query.awaitTermination()


class TestSink:
    """Facts are written once."""

    def test_what_is_written_twice_under_one_name_is_stored_once(
        self, ours: "SparkSession", daemon: Daemon
    ) -> None:
        """As when a driver dies before it heard that all was committed."""
        before = len(held(daemon))
        rows = ours.createDataFrame([(f'["@written{number}:h"]',) for number in range(50)], "row string")
        writing = rows.coalesce(1).write.format("synrepl").mode("append")
        options = {"url": daemon.url, "stream": "push_rules", "writer": "w", "batchFacts": "20"}

        for _ in range(2):
            writing.options(**options, query="once").save()

        added = held(daemon)[before:]
        assert [f'[["@written{number}:h"]]'.encode() for number in range(50)] == [fact.rows for fact in added]
        assert {("push_rules", "w")} == {(fact.stream, fact.writer) for fact in added}

    def test_a_stream_is_written_once_through_a_lost_checkpoint_entry(
        self, ours: "SparkSession", daemon: Daemon, tmp_path: Path
    ) -> None:
        """Spark does a batch again whose commit it did not note; the daemon knows it by query and number."""
        source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
        source.mkdir()
        before = len(held(daemon))

        def run(number: int) -> None:
            (source / f"{number}.json").write_text(json.dumps({"row": json.dumps([f"@streamed{number}:h"])}))
            query = (
                ours.readStream.schema("row string")
                .json(str(source))
                .writeStream.format("synrepl")
                .options(url=daemon.url, stream="push_rules", query="streamed")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        run(1)
        for path in (checkpoint / "commits" / "0", checkpoint / "commits" / ".0.crc"):
            path.unlink(missing_ok=True)
        run(2)

        added = [json.loads(fact.rows) for fact in held(daemon)[before:]]
        assert [[["@streamed1:h"]], [["@streamed2:h"]]] == added


def test_the_source_travels_by_value(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of Spark Connect, and its tasks, need nothing of ours; a machine without Java can use it."""
    (tmp_path / "sitecustomize.py").write_text(NOTHING_OF_OURS)
    (tmp_path / "data").mkdir()
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), before])))
    with connect_server() as remote:
        monkeypatch.setenv("PYTHONPATH", before or "")
        said = run_python(BY_VALUE, remote, daemon.url, str(tmp_path / "data"))
        counts, users, streamed, zone, has_no_java = json.loads(said)

    facts = held(daemon)
    rows = [fact.stream for fact in facts for _ in jsontext.split(fact.rows)]
    assert Counter(rows) == counts
    assert rows.count("receipts") == users
    assert len(rows) == streamed
    assert ("UTC", True) == (zone, has_no_java)
