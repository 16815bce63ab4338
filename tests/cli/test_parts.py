"""Parts of the commands by themselves: posting once, printing enough, showing what is safe."""

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from twisted.internet.task import Clock

from synrepl.cli import append, tables
from synrepl.cli.append import post_facts
from synrepl.cli.command import CliError
from synrepl.cli.json_lines import JsonLines
from synrepl.cli.options import DaemonTarget
from synrepl.cli.output import TailOutput
from synrepl.http_api.request_errors import HttpError
from synrepl.http_client import ConnectError


class Daemon:
    """Answers what a test says, and notes what it was asked."""

    url = "http://daemon"
    has_several = False

    def __init__(self, *answers: Exception | dict[str, Any]) -> None:
        self.bodies: list[bytes] = []
        self._answers = list(answers)

    def json(self, request: Any, body: bytes) -> Any:
        self.bodies.append(body)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def post(daemon: Any) -> dict[str, Any]:
    """Without a pause between attempts."""
    return post_facts(daemon, "receipts", [b"[[1]]"], iter((0.0, 0.0)))


def test_a_batch_whose_answer_was_lost_is_not_stored_again() -> None:
    """The daemon knows it by its key, which is the same each time; another batch has another one."""
    busy = HttpError(503, "busy", "too much")
    daemon = Daemon(ConnectError("broke off"), busy, {"tokens": [1]}, {"tokens": [2]})

    assert [{"tokens": [1]}, {"tokens": [2]}] == [post(daemon) for _ in range(2)]

    keys = [json.loads(body)["idempotency_key"] for body in daemon.bodies]
    assert [1, 1, 1, 2] == [1 + (key != keys[0]) for key in keys]


def test_how_much_is_read_is_known_of_a_file_only(tmp_path: Path) -> None:
    """The progress of a pipe has no end."""
    file = tmp_path / "rows.ndjson"
    file.write_bytes(b"[[1]]\n")
    reading, writing = os.pipe()
    with file.open("rb") as source, os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb"):
        assert (6, None) == (append._size(source), append._size(pipe))
    assert append._size(io.BytesIO(b"rows")) is None


def test_what_the_daemon_does_not_want_is_not_said_again() -> None:
    """Nor is anything for ever."""
    refused = Daemon(HttpError(400, "bad_row", "no"))
    with pytest.raises(HttpError):
        post(refused)
    away = Daemon(*[ConnectError("away")] * 3)
    with pytest.raises(CliError, match="the last batch may have been stored"):
        post(away)

    assert [1, 3] == [len(daemon.bodies) for daemon in (refused, away)]


class Reactor(Clock):
    """Runs nothing but what it is given."""

    def callWhenRunning(self, call: Callable[[], None]) -> None:
        """It never ends here."""


def test_facts_beyond_enough_do_not_count_as_had() -> None:
    """The place that is kept would be beyond them, and the next run would leave them out."""
    reactor = Reactor()
    output = TailOutput(reactor, JsonLines(), exit_after=2)

    assert [True, True, False, False] == [output.write_fact({"n": n}) for n in range(4)]

    assert output.is_ending
    assert 2 == len(output._lines)


def test_what_a_file_has_got_is_on_the_disk_before_the_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the state would be beyond the output, and the next run would leave facts out."""
    done: list[object] = []
    path = tmp_path / "out.ndjson"
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(path.read_bytes()))
    with path.open("wb") as stream:
        output = TailOutput(Reactor(), JsonLines(stream), exit_after=None)

        output.write_fact({"n": 1})
        output.save(lambda: done.append("saved"))

    assert [b'{"n":1}\n', "saved"] == done


def test_a_pipe_is_not_synced() -> None:
    """Nobody can."""
    done: list[str] = []
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as stream:
        output = TailOutput(Reactor(), JsonLines(stream), exit_after=None)

        output.write_fact({"n": 1})
        output.save(lambda: done.append("saved"))

    assert (["saved"], "") == (done, output.error)


def test_an_output_that_cannot_be_synced_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position stays where it was."""
    done: list[str] = []

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with (tmp_path / "out.ndjson").open("wb") as stream:
        output = TailOutput(Reactor(), JsonLines(stream), exit_after=None)

        output.write_fact({"n": 1})
        output.save(lambda: done.append("saved"))

    assert not done
    assert output.error.startswith("sync the output failed: ")


def test_what_a_daemon_answers_is_safe_to_show() -> None:
    """Names come from peers, and escape sequences act on a terminal."""
    clean = (
        DaemonTarget(url="http://127.0.0.1:9093", secret_file=None, ca_file=None, timeout=None, retry=False)
        .connect()
        ._clean
    )

    assert {"a\\x1b[2J": ["b\\n", 1]} == clean({"a\x1b[2J": ["b\n", 1]})


def test_the_state_says_what_is_wrong_elsewhere() -> None:
    """In the first line."""
    warnings = ["1 replica lost, 1 behind", "1 follower behind"]
    found = {"state": "serving", "role": "primary", "warnings": warnings}

    lines = [click.unstyle(line) for line in tables._about(found)]

    assert lines[0].endswith("serving; 1 replica lost, 1 behind; 1 follower behind")
