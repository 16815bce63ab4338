"""`synrepl invalidate`: mistakes, and dry runs."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from synrepl.cli import main
from synrepl.homeserver.commands.invalidate import _lines
from synrepl.homeserver.invalidation import RECEIVED_MEANS
from synrepl.homeserver.invalidation_requests import InvalidationReport, ProcessReport

USER = "@ada:hs.test"


def invalidate(folder: Path, *words: str, **settings: object) -> Result:
    """Run it at a homeserver that cannot be reached."""
    database = {"name": "psycopg2", "args": {"host": "127.0.0.1", "port": 1}}
    redis = {"enabled": True, "host": "127.0.0.1", "port": 1}
    file = folder / "homeserver.yaml"
    file.write_text(json.dumps({"server_name": "hs.test", "database": database, "redis": redis} | settings))
    return CliRunner().invoke(main, ["invalidate", "--homeserver", str(file), *words])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "name a cache with the keys of an entry"),
        (["get_user_by_idd", USER], "did you mean get_user_by_id?"),
        (["get_user_in_directory", USER], "(since 0.22, until 1.89)"),
        (["get_user_by_id"], "--all get_user_by_id drops the whole cache"),
        (["--all", "dr_cache_fake"], "cannot be dropped whole"),
        (["--room", "#lobby:hs.test"], "begins with !"),
        (["get_user_by_id", USER, "--release", "new"], "is no release of Synapse"),
        (["get_user_by_id", USER, "--metrics", "nobody=http://127.0.0.1:1/"], "no process of the homeserver"),
    ],
)
def test_wrong_arguments_end_with_exit_code_2(words: list[str], why: str, tmp_path: Path) -> None:
    """One line, and exit code 2; nothing is connected to."""
    result = invalidate(tmp_path, "--release", "1.163", *words, "--yes")

    assert (2, "") == (result.exit_code, result.stdout)
    assert why in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"redis": {}}, "`redis` is not enabled"),
        ({"instance_map": {"synrepl-invalidate": {"host": "127.0.0.1", "port": 2}}}, "rename it"),
        ({"database": {"name": "other"}}, "no database"),
    ],
)
def test_a_homeserver_where_it_cannot_work(settings: dict[str, object], why: str, tmp_path: Path) -> None:
    """The files say so."""
    result = invalidate(tmp_path, "--release", "1.163", "get_user_by_id", USER, "--yes", **settings)

    assert result.exit_code == 2
    assert why in result.stderr


def test_a_dry_run(tmp_path: Path) -> None:
    """Rows, and what a process drops; neither end is needed."""
    result = invalidate(tmp_path, "cs_cache_fake", "!r:hs", "@a:hs", "--dry-run", "--release", "1.163")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "row: cs_cache_fake !r:hs @a:hs"
    assert lines[1] == "each process of Synapse 1.163 drops:"
    assert "    get_rooms_for_user @a:hs" in lines
    assert "    does_pair_of_users_share_a_room: all" in lines
    assert lines[-1] == "nothing was written"


def test_a_room_of_an_old_release(tmp_path: Path) -> None:
    """Only its state can be dropped, which is said."""
    result = invalidate(tmp_path, "--room", "!r:hs", "--dry-run", "--release", "1.66", "--json")

    found = json.loads(result.stdout)
    assert [{"name": "cs_cache_fake", "keys": ["!r:hs"]}] == found["rows"]
    assert {"get_room_summary", "get_partial_current_state_ids"} <= {
        one["name"] for one in found["drops"]["1.66"]
    }
    assert "only the state of the room" in result.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["get_room_type", "!room:example.org"],
            "(since 1.112), and no other cache that is known here in its place",
        ),
        (
            ["get_user_suspended_status", "@ada:example.org"],
            "(since 1.107), and no other cache that is known here in its place",
        ),
    ],
)
def test_a_cache_that_a_release_between_lacks(words: list[str], why: str, tmp_path: Path) -> None:
    """It was told as dropped, and Synapse ignored the row."""
    result = invalidate(tmp_path, "--release", "1.100", *words, "--dry-run")

    assert (2, "") == (result.exit_code, result.stdout)
    assert why in result.stderr


def test_a_function_of_a_module(tmp_path: Path) -> None:
    """Nobody but its processes knows what is dropped."""
    result = invalidate(tmp_path, "my_module.lookup", "@a:hs", "--release", "1.140", "--dry-run")

    assert result.exit_code == 0
    assert "drops nothing that is known here" in result.stdout
    assert "is taken for a function of a module" in result.stderr


def test_notes_that_were_told_before_are_not_told_again() -> None:
    """What the report says of received rows is shown, and once."""
    processes = [ProcessReport(name="master", received=True)]
    notes = ["1.100 has other keys", RECEIVED_MEANS]
    report = InvalidationReport(
        rows=[{"name": "get_user_by_id", "keys": [USER]}], ids=[1], notes=notes, processes=processes
    )

    lines = [click.unstyle(one) for one in _lines(report, notes[:1])]

    assert ["master: received", RECEIVED_MEANS] == lines
