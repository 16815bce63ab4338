"""The doctor at a real homeserver's database: it says what the newest release does at its start, and why.

Each database is a copy of one that the release itself made, damaged as operators have found theirs. The
numbers of issues are Synapse's.
"""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from synrepl.cli import main
from tests.interop.harness import PEERS, peer_python
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


def test_a_healthy_one(homeserver: Callable[..., str]) -> None:
    """Every stream that the release has, and nothing to say."""
    code, found = doctor(homeserver())

    assert (0, "synapse", []) == (code, found["kind"], found["complaints"])
    assert len(found["streams"]) == 17


@pytest.mark.parametrize(
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
            {("receipts", "sequence_behind_tables", "the homeserver repairs this at its start")},
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
def test_it_says_what_the_homeserver_does(
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
