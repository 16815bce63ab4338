"""A daemon begins with a snapshot of the pipeline, and goes on from exactly there."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synrepl.http_api.routes import APPEND, CHANGELOG, STATUS
from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.store import Store
from synrepl.storage.token_floor import MARGIN
from synrepl.streams.facts import Fact, decode_facts
from tests.processes.replicas import Cluster, fill
from tests.service.processes import TWISTD, Daemon, Process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS = ("events", "receipts", "push_rules")

DIES_WHEN_IT_HAS_TAKEN_A_SNAPSHOT = """
import os, signal
from synrepl.storage.log_copies import LogCopies
adopt = LogCopies.adopt
async def adopt_and_die(self, copy):
    await adopt(self, copy)
    print("adopted", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
LogCopies.adopt = adopt_and_die
from twisted.scripts.twistd import run
run()
"""


def held(url: str) -> list[Fact]:
    """What a daemon has, of what was compacted too."""
    return decode_facts(b"\n".join(BlockingClient(url).lines(CHANGELOG.request(compacted=True))[1]))


def post(url: str, *users: str) -> Any:
    """Append a fact for each user."""
    facts = [[[f"@{user}:h"]] for user in users]
    body = json.dumps({"facts": facts}).encode()
    return BlockingClient(url).json(APPEND.request("push_rules"), body)


def test_a_replica_joins_from_a_snapshot(spark: "SparkSession", tmp_path: Path) -> None:
    """It reads nothing of what the snapshot stands for from the primary, ends with the primary's digest; a
    snapshot that was changed, or of another server, is refused and nothing is stored."""
    position, snapshot = tmp_path / "archive", tmp_path / "snapshot"
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        for _ in range(3):
            # The same users again: most of it is replaced later.
            post(primary.url, *(f"user{number}" for number in range(200)))
        post(primary.url, "ada")
        archive(spark, primary.url, Store(str(position)))
        made = compact(spark, Store(str(position)), Store(str(snapshot))).snapshot
        post(primary.url, "late", "later")

        replica = cluster.add("replica", "--snapshot", str(snapshot), upstream=primary.url)
        ended = cluster.wait_until_same(primary, replica)

        assert (601, 201) == (made.serial, made.keys)
        assert 603 == ended.serial
        status = BlockingClient(replica.url).json(STATUS.request())
        assert (601, "replica") == (status["trimmed_upto"], status["role"])
        whole, copied = held(primary.url), held(replica.url)
        assert [fact for fact in whole if fact.serial in {one.serial for one in copied}] == copied
        assert 203 == len(copied)
        post(primary.url, "again")
        cluster.wait_until_same(primary, replica)
        replica.restart(upstream=primary.url)
        post(primary.url, "and again")
        cluster.wait_until_same(primary, replica)

        first = snapshot / made.files[0].path
        first.write_bytes(first.read_bytes()[:-1] + b"x")
        for name, options, words in (
            ("changed", (), "is damaged: its SHA-256 is"),
            ("stranger", ("--server-name", "elsewhere"), "is a snapshot of localhost, not of elsewhere"),
        ):
            folder = tmp_path / name
            folder.mkdir()
            with Process(
                *TWISTD,
                "--http",
                "tcp:0:interface=127.0.0.1",
                "--listen",
                "tcp:0:interface=127.0.0.1",
                "--snapshot",
                str(snapshot),
                *options,
                cwd=folder,
            ) as refused:
                refused.wait_for(words)
                refused.wait()
            with Daemon(folder) as empty:
                assert 0 == BlockingClient(empty.url).json(STATUS.request())["serial"]


def test_a_snapshot_names_the_homeserver(spark: "SparkSession", tmp_path: Path) -> None:
    """The printed command names none; a start without the snapshot then still knows it."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with Daemon(tmp_path / "old", options=("--server-name", "example.org")) as old:
        post(old.url, "ada")
        archive(spark, old.url, Store(str(tmp_path / "archive")))
    compact(spark, Store(str(tmp_path / "archive")), Store(str(tmp_path / "snapshot")))
    names = []
    for options in (("--snapshot", str(tmp_path / "snapshot")), ()):
        with Daemon(tmp_path / "new", options=options) as new:
            names.append(BlockingClient(new.url).json(STATUS.request())["server_name"])

    assert ["example.org", "example.org"] == names


def test_a_primary_restored_from_a_snapshot_begins_an_epoch(spark: "SparkSession", tmp_path: Path) -> None:
    """What came after the snapshot may be known elsewhere: the two histories can be told apart from there.
    Killed as soon as it has the snapshot, it is in the new epoch already."""
    position, snapshot = tmp_path / "archive", tmp_path / "snapshot"
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "old" / "synrepl.db", 300, streams=STREAMS)
    with Daemon(tmp_path / "old") as old:
        archive(spark, old.url, Store(str(position)))
        before = BlockingClient(old.url).json(STATUS.request())
    compact(spark, Store(str(position)), Store(str(snapshot)))
    with Process(
        *("-c", DIES_WHEN_IT_HAS_TAKEN_A_SNAPSHOT, *TWISTD[2:], "--snapshot", str(snapshot)),
        *("--http", "tcp:0:interface=127.0.0.1", "--listen", "tcp:0:interface=127.0.0.1"),
        cwd=tmp_path / "new",
    ) as killed:
        killed.wait_for("adopted")
        killed.wait()
    with Daemon(tmp_path / "new", options=("--snapshot", str(snapshot))) as new:
        now = BlockingClient(new.url).json(STATUS.request())
        said = post(new.url, "ada")
    with Daemon(tmp_path / "new", options=("--snapshot", str(snapshot))) as again:
        later = BlockingClient(again.url).json(STATUS.request())

    assert (before["serial"], before["digest"], 2) == (now["serial"], now["digest"], now["epoch"])
    assert before["history"] == now["history"]
    assert ("restored", 300) == (now["epoch_starts"][-1]["why"], now["epoch_starts"][-1]["serial"])
    assert (2, 301) == (said["epoch"], said["first_serial"])
    assert (2, 301) == (later["epoch"], later["serial"])
    # Those that the lost history may have given are left out.
    assert said["tokens"][0] > MARGIN
    assert before["streams"] == now["streams"]
