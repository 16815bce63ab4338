"""`synrepl invalidate` at a real Redis and PostgreSQL: what is written and announced, and when nothing is."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from synrepl.storage.id_tables.layout import INVALIDATIONS
from synrepl.storage.id_tables.writer_names import NAMES
from tests.homeserver.test_homeserver_invalidations import OURS, homeserver
from tests.interop.recorder import Recorder
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

SERVER_NAME: Final = "hs.test"
USER: Final = "@ada:hs.test"


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of its own."""
    with RedisServer() as server:
        yield server


class Files:
    """The files of a homeserver of one process, which does not run."""

    def __init__(self, folder: Path, redis_port: int) -> None:
        self.database = homeserver()
        self._file = folder / "homeserver.yaml"
        settings = {
            "server_name": SERVER_NAME,
            "database": {"name": "psycopg2", "args": {"dsn": self.database}},
            "redis": {"enabled": True, "host": "127.0.0.1", "port": redis_port},
        }
        self._file.write_text(json.dumps(settings))

    def invalidate(self, *words: str) -> tuple[int, str, str]:
        """The command's exit code, output and errors."""
        done = subprocess.run(
            [sys.executable, "-m", "synrepl", "invalidate", "--homeserver", str(self._file), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, done.stdout, done.stderr

    def rows(self) -> list[Any]:
        """Our rows in the database."""
        with psycopg.connect(self.database) as database:
            return database.execute(
                f"SELECT stream_id, cache_func, keys FROM {INVALIDATIONS}"
                " WHERE instance_name = %s ORDER BY 1",
                (OURS,),
            ).fetchall()


def test_an_invalidation_announces_a_position_then_its_rows(redis: RedisServer, tmp_path: Path) -> None:
    """A position first, and then each row under its id; the next time the position continues there."""
    files = Files(tmp_path, redis.port)
    with Recorder(redis.port, SERVER_NAME) as recorder:
        code, _, errors = files.invalidate(
            "get_user_by_id", USER, "--all", "get_device", "--yes", "--why", "x"
        )
        files.invalidate("--room", "!r:hs.test", "--yes")
        recorder.wait_for("RDATA", containing="dr_cache_fake")
        told = [message.payload for message in recorder.messages()]

    assert code == 0
    assert "hs.test: 2 rows to write; each process drops 2 entries or caches\n" in errors
    assert ": x\n" in errors
    assert [(5, "get_user_by_id", [USER]), (6, "get_device", None), (7, "dr_cache_fake", ["!r:hs.test"])] == (
        files.rows()
    )
    heads = [payload.rpartition(",")[0] if payload.startswith("RDATA") else payload for payload in told]
    assert [
        f"POSITION caches {OURS} 0 4",
        f'RDATA caches {OURS} 5 ["get_user_by_id",["{USER}"]',
        f'RDATA caches {OURS} 6 ["get_device",null',
        f"POSITION caches {OURS} 6 6",
        f'RDATA caches {OURS} 7 ["dr_cache_fake",["!r:hs.test"]',
    ] == heads


def test_without_redis_nothing_is_written(tmp_path: Path) -> None:
    """A row that nobody hears of would be of no use."""
    files = Files(tmp_path, free_port())
    code, _, errors = files.invalidate("get_user_by_id", USER, "--yes")

    assert code == 1
    assert "nothing was written: Redis: " in errors
    assert [] == files.rows()


def test_while_another_writes(redis: RedisServer, tmp_path: Path) -> None:
    """The second is refused, and says why."""
    files = Files(tmp_path, redis.port)
    with psycopg.connect(files.database) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (NAMES, OURS))
        code, _, errors = files.invalidate("get_user_by_id", USER, "--yes")

    assert code == 1
    assert f"another process writes as {OURS} now" in errors
    assert [] == files.rows()


def test_without_a_terminal_an_invalidation_needs_yes(redis: RedisServer, tmp_path: Path) -> None:
    """Without a terminal and without --yes nothing is written."""
    files = Files(tmp_path, redis.port)
    code, _, errors = files.invalidate("get_user_by_id", USER)

    assert code == 2
    assert "use --yes to confirm" in errors
    assert [] == files.rows()


def test_a_process_that_is_not_measured(redis: RedisServer, tmp_path: Path) -> None:
    """With --verify it is not seen: the rows are written, and the exit code is 1."""
    files = Files(tmp_path, redis.port)
    code, output, _ = files.invalidate("get_user_by_id", USER, "--yes", "--verify", "--json")

    (process,) = json.loads(output)["processes"]
    assert code == 1
    assert process["received"] is False
    assert "its files name no metrics" in process["why"]
    assert len(files.rows()) == 1


@contextmanager
def overtaken(redis: RedisServer) -> Iterator[None]:
    """Meanwhile another writer says again and again that it is far ahead."""
    ending = threading.Event()

    def speak() -> None:
        while not ending.wait(0.005):
            redis.command("PUBLISH", SERVER_NAME, "POSITION caches worker1 0 1000000")

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    yield
    ending.set()
    thread.join()


def test_rows_that_others_overtake(redis: RedisServer, tmp_path: Path) -> None:
    """They are written again with new ids, five times; then the command says that they may be ignored."""
    files = Files(tmp_path, redis.port)
    with overtaken(redis):
        code, output, _ = files.invalidate("get_user_by_id", USER, "--yes", "--release", "1.163", "--json")

    found = json.loads(output)
    assert (1, [5, 6, 7, 8, 9], [9]) == (code, found["ids"], found["overtaken"])
    assert [5, 6, 7, 8, 9] == [token for token, *_ in files.rows()]


@contextmanager
def metrics() -> Iterator[str]:
    """The URL of metrics that never change."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'synapse_build_info{version="1.66.0"} 1.0\n')

        def log_message(self, *words: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_a_process_that_received_nothing(redis: RedisServer, tmp_path: Path) -> None:
    """Its metrics tell the release, and do not rise."""
    files = Files(tmp_path, redis.port)
    with metrics() as url:
        options = ("--metrics", f"master={url}", "--yes", "--json")
        refused, _, errors = files.invalidate("ph_cache_fake", "!r:hs.test", *options)
        code, output, _ = files.invalidate("get_user_in_directory", USER, "--verify", *options)

    assert refused == 2
    assert "Synapse 1.66 has no cache ph_cache_fake" in errors
    (process,) = json.loads(output)["processes"]
    assert code == 1
    assert ("1.66.0", False) == (process["release"], process["received"])
    assert process["why"] == "its metrics count 0 of 1 rows"
