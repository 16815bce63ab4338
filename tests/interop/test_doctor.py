"""The doctor at a real homeserver's database: it says what the newest release does at its start, and why.

Each database is a copy of one that the release itself made, damaged as operators have found theirs. The
numbers of issues are Synapse's.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from synrepl.cli import main
from tests.interop.harness import PEERS, Program, peer_python
from tests.postgres import shared_server
from tests.servers.postgres import PostgresServer

RECEIPT = (
    "INSERT INTO receipts_linearized (stream_id, instance_name, room_id, receipt_type, user_id, event_id,"
    " data) VALUES ({}, 'master', '!room', 'm.read', '@user', '$event', '{{}}')"
)
STICKY = (
    "INSERT INTO sticky_events (stream_id, instance_name, event_id, room_id, event_stream_ordering, sender,"
    " expires_at) VALUES ({}, 'master', '$event', '!room', 2, '@user', 1)"
)
POSITION = "INSERT INTO stream_positions VALUES ('{}', '{}', {})"

pytestmark = pytest.mark.skipif(
    not peer_python("newest").exists(),
    reason="the newest Synapse is not there; run scripts/interop newest",
)


def starts(url: str) -> dict[str, Any]:
    """What the release does when it is started on this database."""
    done = subprocess.run(
        [peer_python("newest"), PEERS / "newest.py", url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return message


def name_of(url: str) -> str:
    """The database in this URL."""
    return url.partition("?")[0].rpartition("/")[2]


@pytest.fixture(scope="module")
def prepared() -> str:
    """The name of a database as the release makes it."""
    url = shared_server().new_database()
    assert starts(url)["event"] == "ready"
    return name_of(url)


@pytest.fixture
def homeserver(prepared: str) -> Callable[..., str]:
    """Copies it, and does this damage."""
    server: PostgresServer = shared_server()

    def damaged(*statements: str) -> str:
        url = server.new_database()
        server.execute(f"DROP DATABASE {name_of(url)}")
        server.execute(f"CREATE DATABASE {name_of(url)} TEMPLATE {prepared}")
        run(url, *statements)
        return url

    return damaged


def run(url: str, *statements: str) -> None:
    """As an operator does."""
    with psycopg.connect(url, autocommit=True) as database:
        for statement in statements:
            database.execute(statement.encode())


def doctor(url: str, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the diagnosis."""
    done = CliRunner().invoke(main, ["doctor", "--database", url, "--json", *options])
    return done.exit_code, json.loads(done.stdout)


def homeserver_file(folder: Path, url: str) -> Path:
    """The homeserver's configuration, with this database."""
    path = folder / "homeserver.yaml"
    database = {"name": "psycopg2", "args": {"dsn": url, "cp_min": 1, "cp_max": 2}}
    path.write_text(yaml.safe_dump({"server_name": "test", "database": database}))
    return path


def before_start(folder: Path, url: str, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what was found and raised."""
    words = ["doctor", "--homeserver", str(homeserver_file(folder, url)), "--before-start", "--json"]
    done = CliRunner().invoke(main, [*words, *options])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.story
def test_a_healthy_one(homeserver: Callable[..., str]) -> None:
    """Every stream that the release has, and nothing to say."""
    code, found = doctor(homeserver())

    assert (0, "synapse", []) == (code, found["kind"], found["complaints"])
    assert len(found["streams"]) == 17


DAMAGES = pytest.mark.parametrize(
    ("damage", "message", "is_refused"),
    [
        pytest.param(
            [
                RECEIPT.format(4),
                "SELECT setval('receipts_sequence', 4)",
                POSITION.format("receipts", "master", 36),
            ],
            {("receipts", "sequence_behind_positions", "the homeserver refuses to start with it")},
            True,
            id="18544-switched-over-and-back",
        ),
        pytest.param(
            [STICKY.format(2), POSITION.format("sticky_events", "master", 2)],
            {
                ("sticky_events", "sequence_behind_tables", "the homeserver refuses to start with it"),
                ("sticky_events", "sequence_behind_positions", "the homeserver refuses to start with it"),
            },
            True,
            id="19671-ported-with-one-row",
        ),
        pytest.param(
            [
                "ALTER SEQUENCE thread_subscriptions_sequence RESTART WITH 2",
                POSITION.format("thread_subscriptions", "master", 2),
            ],
            {
                (
                    "thread_subscriptions",
                    "sequence_behind_positions",
                    "the homeserver refuses to start with it",
                )
            },
            True,
            id="18712-start-with-2",
        ),
        pytest.param(
            [RECEIPT.format(9)],
            {("receipts", "sequence_behind_tables", "before 1.109 it refuses to start with it")},
            False,
            id="table-ahead-of-sequence",
        ),
        pytest.param(
            [POSITION.format("backfill", "master", -36)],
            {
                (
                    "backfill",
                    "sequence_behind_positions",
                    "the homeserver does not check this, since these ids descend",
                )
            },
            False,
            id="ids-that-go-down",
        ),
        pytest.param(
            ["ALTER SEQUENCE receipts_sequence RESTART WITH 1"],
            {("receipts", "sequence_unused", "the homeserver does not check this")},
            False,
            id="sequence-never-used",
        ),
    ],
)


@DAMAGES
def test_the_doctor_agrees_with_the_homeserver(
    homeserver: Callable[..., str], damage: list[str], message: set[tuple[str, str, str]], is_refused: bool
) -> None:
    """And changes nothing. What it says to run lets the homeserver start, and is enough."""
    url = homeserver(*damage)

    code, found = doctor(url, "--fix")

    assert (1, found) == (code, doctor(url)[1])
    assert message == {
        (one["stream"], one["kind"], one["text"].rpartition("; ")[2]) for one in found["complaints"]
    }
    if is_refused:
        refused = starts(url)
        assert (refused["event"], True) == (
            "refused",
            "inconsistent with associated stream" in refused["why"],
        )
    run(url, *(one["statement"] for one in found["complaints"]))
    assert (0, []) == (doctor(url)[0], doctor(url)[1]["complaints"])
    assert starts(url)["event"] == "ready"
    assert (0, []) == (doctor(url)[0], doctor(url)[1]["complaints"])


@DAMAGES
def test_before_a_start(
    homeserver: Callable[..., str],
    damage: list[str],
    message: set[tuple[str, str, str]],
    is_refused: bool,
    tmp_path: Path,
) -> None:
    """Its exit code is what the release does; once raised, the release starts. No position is changed."""
    url = homeserver(*damage)
    positions = "SELECT * FROM stream_positions ORDER BY 1, 2"
    before = rows(url, positions)
    reuses_ids = "sequence_behind_positions" in {kind for _, kind, _ in message}

    code, found = before_start(tmp_path, url)
    refused = starts(url)["event"] == "refused" if is_refused else False
    # A start that is refused may have raised the sequence up to the rows.
    left = before_start(tmp_path, url)[1]["complaints"]
    raised_code, raised = before_start(tmp_path, url, "--apply")

    assert (int(reuses_ids), is_refused, 0) == (code, refused, raised_code)
    seen = {(stream, kind) for stream, kind, _ in message if kind != "sequence_unused"}
    assert seen == {(one["stream"], one["kind"]) for one in found["complaints"]}
    assert {one["stream"] for one in left} == {one["stream"] for one in raised["raised"]}
    assert (True, []) == (raised["may_start"], raised["complaints"])
    assert before == rows(url, positions)
    assert starts(url)["event"] == "ready"
    assert (0, []) == (before_start(tmp_path, url)[0], before_start(tmp_path, url, "--apply")[1]["raised"])


def rows(url: str, statement: str) -> list[Any]:
    """What this gives."""
    with psycopg.connect(url) as database:
        return database.execute(statement.encode()).fetchall()


@pytest.mark.parametrize("damage", [RECEIPT.format(9), POSITION.format("receipts", "old_worker", 1)])
def test_what_the_homeserver_mends_itself_is_gone_after_its_start(
    homeserver: Callable[..., str], damage: str
) -> None:
    """As the doctor message."""
    url = homeserver(damage)

    assert starts(url)["event"] == "ready"

    assert (0, []) == (doctor(url)[0], doctor(url)[1]["complaints"])


def test_a_writer_that_is_gone_and_holds_the_minimum(homeserver: Callable[..., str]) -> None:
    """Only the homeserver's configuration knows whether it is gone: it is named, and the exit code is 0."""
    url = homeserver(
        "SELECT setval('receipts_sequence', 40)",
        POSITION.format("receipts", "master", 40),
        POSITION.format("receipts", "old_worker", 3),
    )

    code, found = doctor(url)

    assert (0, ["writer_behind"]) == (code, [one["kind"] for one in found["complaints"]])
    assert found["complaints"][0]["text"].startswith("old_worker is at 3, 37 behind")
    assert "remove it from the configuration" in found["complaints"][0]["remedy"]


# -- servers that take over from each other ----------------------------------------------------------------

ENDS = """
    SELECT (SELECT last_value FROM account_data_sequence),
        (SELECT stream_id FROM stream_positions WHERE stream_name = 'account_data')
"""


class Running(Program):
    """The release, running with this database."""

    def __init__(self, url: str) -> None:
        super().__init__([peer_python("newest"), PEERS / "newest.py", "--stay", url])
        self.expect("ready")

    def write(self) -> int:
        """Let it write account data. Gives the position after that, as the release counts it."""
        mark = self.mark()
        self.say("write")
        return int(self.expect("wrote", mark)["token"])


@contextmanager
def waiting_doctor(folder: Path, url: str, *options: str) -> Iterator[list[str]]:
    """Runs the command, which waits; it ends when the block has made an end of that. Gives its lines."""
    words = ["doctor", "--homeserver", str(homeserver_file(folder, url)), "--before-start", "--wait", "60"]
    with subprocess.Popen(
        [sys.executable, "-m", "synrepl", *words, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        yield lines
        said, errors = process.communicate(timeout=60)
        lines += said.splitlines()
    assert 0 == process.returncode, errors


@pytest.mark.story
def test_after_the_loss_of_the_primary(tmp_path: Path) -> None:
    """The standby has the ids that were logged ahead: the release starts with it, and nothing is said."""
    with PostgresServer() as primary:
        url = primary.new_database()
        with Running(url) as release, PostgresServer(primary=primary) as standby:
            token = release.write()
            standby.wait_for(primary)
            primary.kill()
            release.kill()
            at_standby = standby.url_of(name_of(url))

            with waiting_doctor(tmp_path, at_standby) as said:
                assert "the server is a standby" in said[0]
                standby.promote()

            assert "the homeserver may start" == said[-1]
            assert [(token + 32, token)] == rows(at_standby, ENDS)
            assert starts(at_standby)["event"] == "ready"


def test_after_a_switch_over_and_back(tmp_path: Path) -> None:
    """S#18544: the release takes the ids that were logged ahead at the second server for its position, and
    stores that position at the first one, which never gave these ids.
    """
    with PostgresServer() as first:
        url = first.new_database()
        with Running(url) as release, PostgresServer(primary=first) as second:
            # A standby from before the id: a later one has the sequence as the primary has it.
            token = release.write()
            release.kill()
            second.wait_for(first)
            at_second = second.url_of(name_of(url))
            first.stop()
            second.promote()
            both = f"{url},{at_second.partition('host=')[2]}&target_session_attrs=read-write"
            with Running(both) as switched:
                first.follow(second)
                first.start()
                first.wait_for(second)
                second.stop()
                first.promote()
                switched.write()

        assert [(token + 1, token + 32)] == rows(url, ENDS)
        assert starts(url)["event"] == "refused"
        assert 1 == before_start(tmp_path, url)[0]
        first.stop()
        with waiting_doctor(tmp_path, url, "--apply") as said:
            assert said[0].startswith("waiting for the database, ")
            first.start()
        assert f"raised account_data_sequence from {token + 1} to {token + 32}" in said
        assert [(token + 32, token + 32)] == rows(url, ENDS)
        with Running(url) as repaired:
            assert token + 33 == repaired.write()
