"""A daemon that publishes a homeserver's table, and what its followers see when that loses history."""

import json
import sqlite3
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.service.processes import Daemon, Process

RULES = {"stream": "push_rules", "table": "rules", "row": ["user_id"], "writers": ["w1"], "start": "earliest"}


def status(daemon: Daemon) -> dict[str, Any]:
    with urllib.request.urlopen(f"{daemon.url}/v1/status", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def tail(daemon: Daemon, folder: Path) -> Process:
    """A follower that keeps its positions."""
    return Process(
        "-m", "synrepl", "tail", f"tcp:{daemon.follow}", "--http", daemon.url, "--stream", "push_rules",
        "--state", "state.json", "--from", "earliest", cwd=folder,
    )  # fmt: skip


def tokens(lines: list[str]) -> list[int]:
    """Of the rows, since the last connection."""
    found: list[int] = []
    for line in lines:
        event = json.loads(line)
        if event["type"] == "connected":
            found = []
        if event["type"] == "rdata":
            found.append(event["token"])
    return found


def test_an_older_dump_takes_followers_back_to_the_last_token_that_is_left(tmp_path: Path) -> None:
    """The log begins a new epoch; what was lost is given to nobody any more, and its tokens come anew."""
    database = sqlite3.connect(tmp_path / "homeserver.db")
    database.executescript(
        "CREATE TABLE stream_positions (stream_name, instance_name, stream_id);"
        "CREATE TABLE rules (stream_id INTEGER, instance_name, user_id);"
    )

    def write(*rows: tuple[int, str]) -> None:
        with database:
            database.executemany("INSERT INTO rules VALUES (?, 'w1', ?)", rows)
            database.execute("DELETE FROM stream_positions")
            database.execute("INSERT INTO stream_positions VALUES ('push_rules', 'w1', ?)", (rows[-1][0],))

    write((2, "@a:hs"), (3, "@b:hs"), (4, "@lost:hs"), (5, "@lost:hs"))
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"table_streams": [RULES], "tables_database": "sqlite:homeserver.db"}))
    options = ("--config", str(config))
    with Daemon(tmp_path, options=options) as daemon:
        port, http_port = (int(where.rsplit(":", 1)[1]) for where in (daemon.follow, daemon.url))
        with tail(daemon, tmp_path) as follower:
            follower.wait_until(lambda lines: tokens(lines) == [2, 3, 4, 5])
            assert status(daemon)["epoch"] == 1
            daemon.terminate()
            with database:
                database.execute("DELETE FROM rules WHERE stream_id > 3")
                database.execute("UPDATE stream_positions SET stream_id = 3")

            with Daemon(tmp_path, port=port, http_port=http_port, options=options) as again:
                again.wait_for("began epoch 2")
                write((4, "@new:hs"))
                follower.wait_until(lambda lines: tokens(lines) == [4])
                assert any("@new:hs" in line for line in follower.lines)
                assert any("after token 3 are lost" in line for line in follower.lines)

                assert status(again)["epoch"] == 2
                assert status(again)["streams"]["push_rules"]["writers"] == {"w1": 4}
    database.close()
