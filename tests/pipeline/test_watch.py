"""The watch job on Spark: with a log that has a hole, as no daemon's has, and with a real daemon."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

import msgspec
import pyarrow as pa
import pytest

from synrepl.errors import ConfigError
from synrepl.http_api.routes import APPEND, ARROW
from synrepl.http_client import BlockingClient
from synrepl.pipeline.watch.watch import WatchResult, watch
from synrepl.streams.digest import EMPTY, chain
from synrepl.streams.facts import Fact
from tests.pipeline.archives import Given, batch_of_facts, chained
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 90.0

ANOTHER_TIME = """
import time

ours = time.time
time.time = lambda: ours() - {seconds}
"""


class FakeLog:
    """What a daemon answers to the source, of any facts whatever."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.facts = list(facts)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, fact: Fact, **changed: Any) -> Fact:
        """One more, which is this one but for what is changed."""
        fields = {**msgspec.structs.asdict(fact), "serial": len(self.facts) + 1, **changed}
        digest = chain(self._digest(len(self.facts)), **{n: v for n, v in fields.items() if n != "digest"})
        self.facts.append(Fact(**{**fields, "digest": digest}))
        return self.facts[-1]

    def _digest(self, serial: int) -> str:
        return self.facts[serial - 1].digest if serial else EMPTY

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        log = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
                body = log.answer(parts.path, asked)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "application/json" if body[:1] == b"{" else ARROW)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def answer(self, path: str, asked: dict[str, str]) -> bytes:
        """To a GET."""
        facts = list(self.facts)
        if path == "/v1/digests":
            digests = {serial: self._digest(int(serial)) for serial in asked["serials"].split(",")}
            at = {"history": "fake", "epoch": facts[-1].epoch, "serial": len(facts)}
            return json.dumps({"digests": digests, **at}).encode()
        since = int(asked.get("since", 0))
        wanted = facts[since : int(asked.get("upto", len(facts)))]
        if path == "/v1/changelog":
            sink = pa.BufferOutputStream()
            batch = batch_of_facts(wanted)
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            return bytes(sink.getvalue())
        assert path == "/v1/extent", path
        clock: dict[str, dict[str, int]] = {}
        for fact in wanted:
            clock.setdefault(fact.stream, {})[fact.writer] = fact.token
        last = wanted[-1] if wanted else None
        return json.dumps(
            {
                "since": since,
                "serial": last.serial if last else since,
                "epoch": facts[-1].epoch,
                "digest": self._digest(last.serial if last else since),
                "history": "fake",
                "facts": len(wanted),
                "bytes": sum(len(fact.rows) for fact in wanted),
                "clock": clock,
                "committed_at_ms": last.committed_at_ms if last else 0,
                "trimmed_upto": 0,
                "head": len(facts),
            }
        ).encode()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Watching:
    """The job in a thread, and what it has written so far."""

    def __init__(self, spark: "SparkSession", url: str, **options: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self.watched: WatchResult | None = None
        self._failure: BaseException | None = None
        self._is_over = False
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        told = {"since": "earliest", "every_seconds": 0.2, **options}
        self._thread = threading.Thread(target=self._run, args=(spark, url, told))

    def _run(self, spark: "SparkSession", url: str, options: dict[str, Any]) -> None:
        try:
            self.watched = watch(spark, url, **options, write=self._write, stopped=self._stopped.is_set)
        except BaseException as error:
            self._failure = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _write(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        with self._changed:
            self.lines.append(json.loads(line))
            self._changed.notify_all()

    def until(self, is_enough: Callable[[list[str]], bool]) -> None:
        """Until it has told enough, by the types of its lines."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or is_enough(self.types), PATIENCE_SECONDS)
            assert self._failure is None
            assert is_enough(self.types), self.lines

    @property
    def types(self) -> list[str]:
        """Of the lines so far."""
        return [line["type"] for line in self.lines]

    def one(self, kind: str, *names: str) -> Any:
        """What the one line of this type has under these names."""
        (found,) = (line for line in self.lines if line["type"] == kind)
        return [found[name] for name in names] if names else found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        if error[0] is None and self._failure is not None:
            raise self._failure


def rule(user: str) -> list[list[str]]:
    """The rows of a fact of ``push_rules``."""
    return [[user]]


class TestHole:
    """A log in which facts are missing."""

    def test_what_is_missing_is_told_and_remembered(self, spark: "SparkSession", tmp_path: Path) -> None:
        """A run that goes on knows what the one before it told, and tells nothing twice."""
        checkpoint = str(tmp_path / "checkpoint")
        minute: list[Given] = [
            ("caches", "master", [["cs_cache_fake", ["!r:h", "@a:h"], 0], ["mine", None, 0]])
        ]
        facts = chained([("push_rules", "w1", rule("@a:h")), *minute], step_ms=1000)
        with FakeLog(facts) as log:
            first = facts[0]
            after = log.add(first, prev_token=7, token=8, committed_at_ms=first.committed_at_ms + 90_000)
            with Watching(spark, log.url, checkpoint=checkpoint, top=30) as before:
                before.until(lambda types: {"gap", "hot"} <= set(types))
            log.add(after, prev_token=7, token=7)
            turned = log.add(after, epoch=2, prev_token=5, token=6)
            with Watching(spark, log.url, checkpoint=checkpoint) as later:
                later.until(lambda types: "restart" in types)

        assert ["gap", "hot"] == before.types
        assert ["push_rules", "w1", 1, 7, 1, 3, after.committed_at_ms] == before.one(
            "gap", "stream", "writer", "after_token", "upto_token", "epoch", "serial", "at_ms"
        )
        hot = before.one("hot")
        assert ("2026-11-21T00:00Z", 2) == (hot["minute"], hot["rows"])
        assert {"name": "is_host_joined", "count": 1} in hot["names"]
        assert {"name": "mine", "count": 1} in hot["whole_names"]
        assert ["repaired", "epoch", "restart"] == later.types
        assert [1, 7, 1, 4] == later.one("repaired", "after_token", "upto_token", "facts", "serial")
        assert [1, 2, turned.serial] == later.one("epoch", "before_epoch", "epoch", "serial")
        assert [8, 5, 6] == later.one("restart", "after_token", "prev_token", "token")
        assert before.watched is not None
        assert {"gap": 1, "hot": 1} == {name: n for name, n in before.watched.lines.items() if n}

    def test_a_closed_output_ends_the_watch(self, spark: "SparkSession") -> None:
        """As when a pipe is closed: with that, not with what Spark makes of it."""
        facts = chained([("push_rules", "w1", rule("@a:h"))])

        def write(line: bytes) -> None:
            raise BrokenPipeError(line)

        with FakeLog(facts) as log:
            log.add(facts[0], prev_token=3, token=4)
            with pytest.raises(BrokenPipeError, match="gap"):
                watch(spark, log.url, since="earliest", write=write, stopped=lambda: False)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"since": "yesterday"}, "startingOffsets must be earliest, latest"),
            ({"stall_seconds": 0}, "must be above 0"),
            ({"top": 0}, "must be above 0"),
        ],
    )
    def test_mistakes_are_told_in_a_line(
        self, spark: "SparkSession", options: dict[str, Any], expected: str
    ) -> None:
        """Before anything is started."""
        with pytest.raises(ConfigError, match=expected):
            watch(spark, "http://127.0.0.1:1", **options, write=print, stopped=lambda: True)


def test_a_real_daemon(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who falls silent is told while nothing comes at all; then that it speaks, and what was dropped."""
    (tmp_path / "data").mkdir()
    # A daemon of ten minutes ago, whose minute has just begun.
    back = ANOTHER_TIME.format(seconds=600 + time.time() % 60)
    (tmp_path / "sitecustomize.py").write_text(back)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        earlier = Daemon(tmp_path / "data")
    with earlier:
        for number in range(5):
            post(earlier, "push_rules", rule(f"@{number}:h"), writer="w1")
        post(earlier, "caches", [["cs_cache_fake", ["!r:h", "@a:h", "@b:far"], 0]])
        post(earlier, "caches", [["get_user_by_id", ["@a:h"], 0], ["get_user_by_id", None, 0]])
        post(earlier, "caches", [["get_user_by_id", ["@a:h"], 0]])
        earlier.terminate()

    with (
        Daemon(tmp_path / "data") as daemon,
        Watching(spark, daemon.url, stall_seconds=1, streams=["push_rules", "caches"], top=3) as watching,
    ):
        watching.until(lambda types: "stall" in types)
        post(daemon, "push_rules", rule("@6:h"), writer="w1")
        watching.until(lambda types: {"active", "hot"} <= set(types))

    assert ["push_rules", "w1", 5] == watching.one("stall", "stream", "writer", "token")
    assert 1 < watching.one("stall")["silent_seconds"]
    assert ["push_rules", "w1", 6] == watching.one("active", "stream", "writer", "token")
    hot = watching.one("hot")
    assert (4, 3) == (hot["rows"], hot["whole"])
    assert {"name": "get_user_by_id", "key": ["@a:h"], "count": 2} == hot["keys"][0]
    assert 3 == len(hot["names"])
    # Rooms of each of two users, their servers, the room's state, and what was told by its name.
    assert hot["invalidations"] > 20
    assert "gap" not in watching.types


def post(daemon: Daemon, stream: str, rows: list[Any], *, writer: str = "master") -> None:
    """Append a fact."""
    body = json.dumps({"facts": [rows], "writer": writer}).encode()
    BlockingClient(daemon.url).json(APPEND.request(stream), body)
