"""Files that an operator names, and that say anything: they are refused in words, or read in time."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from synrepl import small_files
from synrepl.cli import main
from synrepl.cli.command import MAX_LINE
from synrepl.cli.options import Output
from synrepl.config.bounded_yaml import MAX_VALUES
from synrepl.errors import ConfigError, StorageError
from synrepl.homeserver.commands.doctor import _lines as doctor_lines
from synrepl.homeserver.commands.inspect import report_lines
from synrepl.homeserver.commands.invalidate import _lines as invalidate_lines
from synrepl.homeserver.configuration import read_homeserver
from synrepl.homeserver.doctor.complaints import Complaint, Diagnosis
from synrepl.homeserver.findings import Finding, Unseen
from synrepl.homeserver.inspection import InspectionReport
from synrepl.homeserver.invalidation_requests import InvalidationReport, ProcessReport
from synrepl.small_files import MAX_BYTES, read_small_file
from synrepl.storage.databases import Database
from synrepl.transports.redis.connections import explain
from tests.postgres import new_database

ESCAPE = "\x1b]0;owned\x07\u202e"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


# -- shapes ------------------------------------------------------------------------------------------------

SHAPED: dict[str, Any] = {
    "server_name": "hs",
    "enable_metrics": True,
    "redis": {"enabled": True, "host": "redis", "port": 6379},
    "instance_map": {"main": {"host": "synapse", "port": 9093}, "w1": {"host": "w1", "port": 8083}},
    "stream_writers": {"typing": ["w1"]},
    "federation_sender_instances": ["w1"],
    "worker_app": "synapse.app.generic_worker",
    "worker_name": "w1",
    "worker_listeners": [{"type": "http", "port": 8083, "resources": [{"names": ["replication"]}]}],
    "listeners": [
        {
            "type": "http",
            "port": 9093,
            "bind_addresses": ["127.0.0.1"],
            "resources": [{"names": ["replication"]}],
        }
    ],
}


def places(value: Any, *before: Any) -> list[tuple[Any, ...]]:
    """Where there is something in a value, from its top."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [place for key, one in inner for place in places(one, *before, key)]
    return [before, *found] if before else found


@pytest.mark.parametrize("place", places(SHAPED), ids=str)
def test_a_value_of_another_shape_is_told_in_words(tmp_path: Path, place: tuple[Any, ...]) -> None:
    """Two files of a worker and of the main process; the worker has all keys, as in a pod."""
    for number, other in enumerate(("${X}", None, 7, True, "x", [], {}, ["${X}"], {"a": "${X}"})):
        values = json.loads(json.dumps(SHAPED))
        inner = values
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = other
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "w1.yaml").write_text(json.dumps(values))
        main_keys = {key: one for key, one in values.items() if not key.startswith("worker_")}
        (folder / "homeserver.yaml").write_text(json.dumps(main_keys))
        words = ["--homeserver", str(folder / "homeserver.yaml"), "--worker", str(folder / "w1.yaml")]

        result = CliRunner().invoke(main, ["inspect", "--files", "--json", *words])

        assert isinstance(result.exception, SystemExit | None), (other, result.exception)


# -- files -------------------------------------------------------------------------------------------------


def test_a_small_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content in (b"", b"text", b"x" * MAX_BYTES):
        file.write_bytes(content)
        assert content == read_small_file(file)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """As a shell makes one, whoever opens it first."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"y" * 100_000))
    writer.start()
    found = read_small_file(pipe)
    writer.join()

    assert found == b"y" * 100_000


@pytest.mark.parametrize("has_writer", [True, False])
def test_a_pipe_that_does_not_end_is_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_writer: bool
) -> None:
    """Two seconds; a test needs less."""
    monkeypatch.setattr(small_files, "PIPE_SECONDS", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ends = [os.open(pipe, os.O_RDWR)] * has_writer
    try:
        with pytest.raises(ConfigError, match="has not ended within"):
            read_small_file(pipe)
    finally:
        for one in ends:
            os.close(one)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/dev/zero", "neither a file nor a pipe"),
        ("/dev/null", "neither a file nor a pipe"),
        ("/no/such", "No such file"),
        (".", "a directory"),
        ("large", "more than 1024 KiB"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, said: str) -> None:
    """Through a link as well."""
    (tmp_path / "large").write_bytes(b"z" * (MAX_BYTES + 1))
    path = tmp_path / name
    if name.startswith("/dev/"):
        path = tmp_path / "link"
        path.symlink_to(name)

    with pytest.raises(ConfigError, match=said):
        read_small_file(path, "the file")


# -- configurations ----------------------------------------------------------------------------------------


def run(tmp_path: Path, content: str | bytes, *command: str) -> Result:
    """A command with this homeserver.yaml."""
    file = tmp_path / "homeserver.yaml"
    file.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return CliRunner().invoke(main, [*command, "--homeserver", str(file)])


MERGES = "".join(f"k{n}: &m{n} {{<<: [{', '.join(f'*m{p}' for p in range(n))}]}}\n" for n in range(30))
CHAIN = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 20_000))
COMMANDS = (
    ("inspect",),
    ("doctor",),
    ("doctor", "--before-start"),
    ("explain", "s1_2"),
    ("invalidate", "get_user_by_id", "@a:x", "--yes"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_bounds_what_aliases_repeat(tmp_path: Path, command: tuple[str, ...]) -> None:
    """They read the same files."""
    result = run(tmp_path, BOMB, *command)

    assert result.exit_code == 2
    assert "with those that aliases repeat" in result.stderr


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(BOMB + "server_name: x\ninstance_map: *a9\n", id="aliases"),
        pytest.param("server_name: x\nloop: &a [*a]\n", id="itself"),
        pytest.param("server_name: x\nloop: &a {b: {c: *a}}\n", id="itself-deeper"),
        pytest.param(MERGES, id="merges"),
        pytest.param("[" * 20_000, id="nesting"),
        pytest.param(CHAIN, id="chain"),
        pytest.param("x: !!python/object/apply:os.system ['touch /tmp/owned']\n", id="python"),
        pytest.param("x: !!python/name:os.system\n", id="python-name"),
        pytest.param("x: " + "9" * 6_000, id="digits"),
        pytest.param("\x1b]0;owned\x07", id="escape"),
        pytest.param(b"\xff\xfe\x00", id="bytes"),
        pytest.param("? [a, b]\n: c\n", id="key"),
        pytest.param("x: y\n" * (MAX_BYTES // 4), id="large"),
        pytest.param("- a\n", id="list"),
        pytest.param("server_name: [x]\n", id="name"),
    ],
)
def test_a_hostile_configuration_is_refused_in_words(tmp_path: Path, content: str | bytes) -> None:
    """In one line, with exit code 2."""
    result = run(tmp_path, content, "inspect")

    assert (2, True) == (result.exit_code, isinstance(result.exception, SystemExit))
    assert 1 == len(result.stderr.splitlines())
    assert result.stderr.rstrip("\n").isprintable()
    assert len(result.stderr) < MAX_LINE + 100


COLLECTION = {"a": ["b"] * 1_000}


@pytest.mark.parametrize(
    "changes",
    [
        {"instance_map": COLLECTION, "stream_writers": {"events": [COLLECTION, "w1"]}},
        {"database": {"name": "psycopg2", "args": {"host": COLLECTION, "user": ["x"], "cp_min": COLLECTION}}},
        {"database": {"name": COLLECTION}},
        {"listeners": [{"type": "metrics", "port": 1, "bind_addresses": [COLLECTION, "127.0.0.1"]}]},
        {"redis": {"enabled": True, "host": COLLECTION, "port": COLLECTION, "password": COLLECTION}},
        {"app_service_config_files": [COLLECTION, 5, "/dev/zero"]},
        {"worker_replication_secret_path": "/dev/zero"},
        {"redis": {"enabled": True, "password_path": "/dev/zero"}},
    ],
)
def test_collections_do_not_become_text(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Where a text is expected, they are no setting."""
    file = tmp_path / "homeserver.yaml"
    file.write_text(yaml.safe_dump({"server_name": "x", **changes}))

    assert "'b'" not in repr(read_homeserver([file]))


def test_many_values_are_read(tmp_path: Path) -> None:
    """As large homeservers have."""
    file = tmp_path / "homeserver.yaml"
    file.write_text("server_name: x\nmany: [" + ", ".join(["1"] * (MAX_VALUES - 10)) + "]\n")

    assert read_homeserver([file]).server_name == "x"


# -- what is printed ---------------------------------------------------------------------------------------


def test_no_text_of_a_homeserver_reaches_the_terminal_raw(tmp_path: Path) -> None:
    """Names of servers, processes, streams and files, and what databases and peers answer."""
    file = tmp_path / "homeserver.yaml"
    names = {ESCAPE: {"host": ESCAPE}}
    file.write_text(yaml.safe_dump({"server_name": ESCAPE, "instance_map": names}))
    finding = Finding(
        kind="held", stream=ESCAPE, writer=ESCAPE, process=ESCAPE, why=ESCAPE, remedy=ESCAPE, command=ESCAPE
    )
    report = InspectionReport(
        homeserver=read_homeserver([file]),
        findings=[finding],
        mended=[finding],
        notes=[finding],
        unseen=[Unseen(what=ESCAPE, why=ESCAPE)],
        seen={"streams": 1, "writers": 1, "processes": 1, "announced": 1},
    )
    complaint = Complaint(
        severity="error", kind="x", stream=ESCAPE, text=ESCAPE, remedy=ESCAPE, statement=ESCAPE
    )
    idle = Complaint(severity="note", kind="silent_writer", stream=ESCAPE, text=ESCAPE)
    diagnosis = Diagnosis(database=ESCAPE, kind="synapse", streams=[ESCAPE], complaints=[complaint, idle])
    told = InvalidationReport(
        rows=[],
        drops={},
        notes=[ESCAPE],
        ids=[],
        overtaken=[],
        processes=[
            ProcessReport(name=ESCAPE, release="1", why=ESCAPE),
            ProcessReport(name=ESCAPE, release="1", why="", received=True),
        ],
    )
    lines = [*report_lines(report, Output("wide")), *doctor_lines(diagnosis, fix=True)]
    lines += invalidate_lines(told, [])

    assert all(click.unstyle(line).isprintable() for line in lines)
    assert sum("owned" in line for line in lines) > 10


def test_what_a_redis_answers_is_printable() -> None:
    """Also if it is a whole page."""
    said = explain(f"ERR {ESCAPE}" * 1_000)

    assert said.isprintable()
    assert len(said) < 2_000


@pytest.mark.parametrize(
    "parameters",
    [
        {"dbname": "postgresql://u:SECRET@127.0.0.1:1/x?password=SECRET"},
        {"dbname": "host=127.0.0.1 password=SECRET"},
        {"dbname": "postgresql://127.0.0.1/x?" + "a" * 80 + "&password=SECRET"},
        {"user": "postgresql://u:SECRET@h/x"},
        {"host": "postgresql://u:SECRET@h/x"},
        {"password": "SECRET", "dbname": "no_such_SECRET"},
        {"options": "-c password=SECRET"},
        {"sslpassword": "SECRET", "sslmode": "SECRET"},
        {"dbname": ESCAPE},
    ],
)
def test_no_secret_of_a_connection_is_shown(parameters: dict[str, str]) -> None:
    """Wherever somebody wrote it."""
    own = dict(part.split("=", 1) for part in new_database().partition("?")[2].split("&"))
    database = Database({"host": own["host"], "user": "postgres", **parameters}, statement_seconds=2.0)
    with pytest.raises(StorageError) as raised:
        database.connect()

    for said in (str(raised.value), database.name, repr(database)):
        assert "SECRET" not in said
        assert said.isprintable()
