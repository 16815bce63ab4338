"""The programs of the manual do what their pages say: as printed, from an empty folder."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, timeout=60, env=ENVIRONMENT
    )


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    (tmp_path / "writer.py").write_text(blocks("docs/howto/write-facts.md", "python")[0], "utf-8")
    return tmp_path


def test_the_writer_prints_what_the_page_shows(writer: Path) -> None:
    """Both writers, one after the other."""
    shown = []
    for name in ("w1", "w2"):
        shown.append(f"$ python writer.py {name}")
        shown += run(writer, "writer.py", name).stdout.splitlines()

    assert blocks("docs/howto/write-facts.md", "console")[0].splitlines() == shown


def test_a_writer_that_is_not_listed_ends_with_an_error(writer: Path) -> None:
    """It could only be killed: a thread that nothing stopped kept the process alive."""
    ended = run(writer, "writer.py", "w3")

    assert ended.returncode == 1
    assert "w3 is none of its writers (w1, w2)" in ended.stderr


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    names = ("counter.py", "counter.tac", "test_topics.py", "test_counter.py")
    for name, text in zip(names, blocks("docs/howto/write-a-worker.md", "python"), strict=True):
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def test_the_tests_of_the_worker_pass(worker: Path) -> None:
    """Its counts are exact through a kill, and its cache is invalidated."""
    ended = run(worker, "-m", "pytest", "-q", "-p", "no:cacheprovider")

    assert "2 passed" in ended.stdout, ended.stdout


def starts(folder: Path, program: str, command: str) -> None:
    """Check that a printed command starts a worker, which connects, and ends in order when asked to."""
    # A folder on the path replaces PYTHONPATH; this stands for the installed package.
    (folder / "synrepl").symlink_to(ROOT / "synrepl")
    path = folder / program
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        port = server.getsockname()[1]
        text = path.read_text("utf-8").replace("tcp:127.0.0.1:9092", f"tcp:127.0.0.1:{port}")
        path.write_text(text, "utf-8")
        with subprocess.Popen(
            f"exec env {command}",
            shell=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=ENVIRONMENT,
        ) as process:
            try:
                server.accept()[0].close()
            finally:
                process.send_signal(signal.SIGTERM)
                said = process.communicate(timeout=30)[0]
            assert "Server Shut Down" in said, said
    assert "Traceback" not in said


def test_the_worker_starts_as_printed(worker: Path) -> None:
    """`twistd` alone does not find modules in the current folder."""
    [command] = blocks("docs/howto/write-a-worker.md", "console")

    starts(worker, "counter.tac", command.removeprefix("$ ").strip())


def test_the_worker_of_the_readme_starts_as_printed(tmp_path: Path) -> None:
    """The first program that a reader tries."""
    [program] = blocks("README.md", "python")
    found = re.search(r"`worker.tac`, which `(.*)` runs", (ROOT / "README.md").read_text("utf-8"))
    assert found is not None
    (tmp_path / "worker.tac").write_text(program, "utf-8")

    starts(tmp_path, "worker.tac", found[1])


MIGRATED = """
import sqlite3

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.testing import MemoryReactorClock


def test_it_connects_to_redis() -> None:
    reactor = MemoryReactorClock()
    service = connect(reactor, synrepl.Follower(instance="pusher1"), "secret")
    service.startService()
    assert {client[1] for client in reactor.tcpClients} == {6379}


def test_waiting_ends_with_the_row() -> None:
    cluster = Cluster()
    follower = push_worker(Pushers(), MemoryPositions(), caches)
    cluster.follower(follower)
    done = ensureDeferred(wait_for_receipts(follower, 1))
    assert not done.called
    cluster.append("receipts", Receipt("!r:hs", "m.read", "@ada:hs", "$e", None, {}), writer="persister1")
    assert done.called


def test_a_receipt_drops_a_cached_value_and_a_command_is_received() -> None:
    cluster, servers = Cluster(), []
    follower = push_worker(Pushers(), MemoryPositions(), caches)
    retry_servers(follower, servers.append)
    cluster.follower(follower)
    ensureDeferred(get_last_read("@ada:hs"))
    misses = caches.caches["get_last_read"].misses
    cluster.append("receipts", Receipt("!r:hs", "m.read", "@ada:hs", "$e", None, {}))
    ensureDeferred(get_last_read("@ada:hs"))
    assert caches.caches["get_last_read"].misses == misses + 1
    cluster.daemon.publisher.broadcast(RemoteServerUp(server="other.hs"))
    cluster.settle()
    assert servers == ["other.hs"]


class Pool:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    def runInteraction(self, work, *args):
        done = Deferred()
        with self.connection:
            done.callback(work(self.connection.cursor(), *args))
        return done


def test_a_write_has_its_id_and_its_invalidation() -> None:
    pool, clock = Pool(), MemoryReactorClock()
    pool.connection.execute("CREATE TABLE receipts (stream_id BIGINT, user_id TEXT)")
    ids, changed = (
        synrepl.StreamIdGenerator(
            pool,
            name=name,
            sequence=f"{name}_sequence",
            tables=[synrepl.IdTable(name=table, writer_column=None)],
            instance="w1",
            flavor="sqlite",
            clock=clock,
        )
        for name, table in (("receipts", "receipts"), ("caches", "cache_invalidation_stream_by_instance"))
    )
    changes = synrepl.InvalidationWriter(changed, seconds=clock.seconds)
    pool.runInteraction(changes.create)
    tokens = []
    for generator in (ids, changed):
        pool.runInteraction(generator.database.create)
        ensureDeferred(generator.start())
    ensureDeferred(write(pool, receipt_writer(ids, changes))).addCallback(tokens.append)
    assert tokens == [2]
    query = "SELECT cache_func, keys FROM cache_invalidation_stream_by_instance"
    assert pool.connection.execute(query).fetchall() == [("get_last_read", \'["@ada:hs"]\')]
"""
"""Tests of the parts of the program that the page does not test itself."""


def test_the_migrated_worker_passes_its_test(tmp_path: Path) -> None:
    """The right sides of the page, put together, are one program with its test."""
    program = "".join(blocks("docs/howto/migrate-from-synapse-handler.md", "python"))
    path = tmp_path / "test_pusher.py"
    path.write_text(program + MIGRATED, "utf-8")

    ended = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name)

    assert "5 passed" in ended.stdout, ended.stdout
