"""A stream of one's own between real processes: created, written, followed, copied, and silent on Redis."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from synrepl.cli.main import main
from tests.processes.channel import Listener, Tail, ask, eventually, on_redis, status, wait_until_writing
from tests.servers.redis import RedisServer
from tests.service.processes import TWISTD, Daemon, Process

CREATE = ("create", "packages", "--key", "name", "--columns", "name:str,version:str,size:int?")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of its own."""
    with RedisServer() as server:
        yield server


def run(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command of synrepl."""
    return subprocess.run(
        [sys.executable, "-m", "synrepl", *arguments], input=input, capture_output=True, text=True, timeout=60
    )


def rows(url: str) -> list[Any]:
    """The packages that a daemon has."""
    lines = ask(url, "/v1/changelog?streams=packages").decode().splitlines()
    return [row for line in map(json.loads, lines) if "rows" in line for row in line["rows"]]


def test_a_package_index(tmp_path: Path, redis: RedisServer) -> None:
    """The replica has it, a tail that names it follows it, a restart keeps it; Redis never hears of it."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(redis))
        primary = stack.enter_context(on_redis(tmp_path, redis, "alpha", writes="all"))
        wait_until_writing(primary)
        (tmp_path / "copy").mkdir()
        upstream = ("--upstream", f"tcp:{primary.follow}", "--server-name", "localhost")
        copy = stack.enter_context(Daemon(tmp_path / "copy", options=upstream))
        eventually(lambda: status(copy.url)["state"] == "serving", "a copy that serves")

        created = run("streams", *CREATE, "--url", primary.url)
        again = run("streams", *CREATE, "--url", primary.url)
        other = run("streams", "create", "packages", "--untyped", "--url", primary.url)
        refused = run("streams", "create", "more", "--untyped", "--url", copy.url)
        assert (created.returncode, created.stdout) == (0, "packages is created\n"), created
        assert (again.returncode, again.stdout) == (0, "packages was there already\n"), again
        assert (other.returncode, "is declared already, with key" in other.stderr) == (1, True), other
        assert (refused.returncode, "replica" in refused.stderr) == (1, True), refused

        eventually(lambda: "packages" in status(copy.url)["streams"], "the stream at the copy")
        named = stack.enter_context(
            Tail(copy, "current", "--stream", "packages", "--from", "earliest", cwd=tmp_path)
        )
        everything = stack.enter_context(Tail(copy, "current", cwd=tmp_path, name="synapse-like"))
        everything.wait_until_live()

        row = '["twisted","24.3",null]\n'
        appended = run("append", "packages", "--url", primary.url, input=row)
        bad = run("append", "packages", "--url", primary.url, input='["twisted",24,null]\n')
        assert appended.returncode == 0, appended
        assert (bad.returncode, "version (item 1)" in bad.stderr) == (1, True), bad
        forwarded = run("append", "packages", "--url", copy.url, input='["klein","23.12",5]\n')
        assert forwarded.returncode == 0, forwarded
        assert (
            run("append", "receipts", "--writer", "alpha", "--url", primary.url, input=RECEIPT).returncode
            == 0
        )

        named.wait_for_facts(2)
        everything.wait_for_facts(1)
        assert [fact.stream for fact in named.told] == ["packages", "packages"]
        assert [fact.stream for fact in everything.told] == ["receipts"]
        eventually(lambda: len(rows(copy.url)) == 2, "the rows at the copy")
        assert rows(primary.url) == rows(copy.url) == [["twisted", "24.3", None], ["klein", "23.12", 5]]

        eventually(lambda: listener.payloads("RDATA"), "the receipt on Redis")
        heard = "\n".join(one.payload for one in listener.heard)
        assert "receipts" in heard
        assert "packages" not in heard
        assert "declarations" not in heard

    with Daemon(tmp_path / "copy", options=("--upstream", "tcp:127.0.0.1:1")) as alone:
        assert "packages" in status(alone.url)["streams"]
        assert len(rows(alone.url)) == 2


RECEIPT = '["!r:hs","m.read","@ada:hs","$e",null,{}]\n'


def test_streams_of_the_configuration(tmp_path: Path) -> None:
    """A start declares them; a later start that declares them otherwise is refused in one line."""
    path = tmp_path / "synrepl.yaml"
    path.write_text("streams:\n  packages: {key: name, columns: {name: str}, writers: [index]}\n", "utf-8")
    with Daemon(tmp_path, options=("--config", str(path))) as daemon:
        assert "packages" in status(daemon.url)["streams"]
        refused = run("append", "packages", "--url", daemon.url, input='["a"]\n')
        written = run("append", "packages", "--writer", "index", "--url", daemon.url, input='["a"]\n')
        assert (refused.returncode, "only index may write it" in refused.stderr) == (1, True), refused
        assert written.returncode == 0, written
        daemon.terminate()

    path.write_text("streams:\n  packages: {key: name, columns: {name: int}}\n", "utf-8")
    listeners = ("--listen", "tcp:0:interface=127.0.0.1", "--http", "tcp:0:interface=127.0.0.1")
    with Process(*TWISTD, *listeners, "--config", str(path), cwd=tmp_path) as other:
        assert other.wait() == 1
    [said] = [line for line in other.lines if "cannot start" in line]
    assert 'streams: stream packages is declared already, with columns {"name":"str"} and not' in said
    assert not any("Traceback" in line for line in other.lines)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("create", "create takes the name of a stream"),
        ("list packages", "list takes no name"),
        ("create packages", "create needs --columns or --untyped"),
        ("create packages --untyped --columns a:str", "create needs --columns or --untyped"),
        ("create packages --columns a", "a must be NAME:TYPE"),
        ("create packages --columns a:str,a:int", "a:int must be NAME:TYPE, with a name that occurs once"),
        ("create packages --untyped --stuck", "create does not take --stuck"),
        ("--key a", "only create takes --key"),
    ],
)
def test_wrong_declarations_are_refused_in_one_line(arguments: str, why: str) -> None:
    """One line, before anything is asked of a daemon."""
    from click.testing import CliRunner

    ended = CliRunner().invoke(main, ["streams", *arguments.split(), "--url", "http://127.0.0.1:1"])

    assert ended.exit_code == 2
    assert why in ended.stderr
