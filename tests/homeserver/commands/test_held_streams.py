"""``synrepl streams --stuck``: what holds a stream, from a database and from a daemon."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from synrepl.cli import main
from tests.homeserver.doctor.places import FLAVORS, Place
from tests.storage.builders import NOW

URL = "http://127.0.0.1:1"


@pytest.fixture(params=FLAVORS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A database of each kind; now is `NOW`."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    place = Place(request.param, tmp_path)
    place.make_ids()
    return place


def stuck(place: Place, *options: str) -> Result:
    """Run it on this database."""
    return CliRunner().invoke(main, ["streams", "--stuck", "--database", place.url, *options])


def test_idle_and_working_writers_are_not_stuck(place: Place) -> None:
    """An idle writer, and one that works."""
    place.position(4, "A")
    place.position(4, "B")
    place.told("A", 4)
    place.told("B", 4, unfinished=[5], age=0.5)

    result = stuck(place)

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        (
            "held: things: B has id 5 unfinished, reserved 0 s ago by send (process host:7:cafe):"
            " the stream waits for id 5"
        ),
        "nothing is stuck",
    ]


def test_the_owner_of_an_unfinished_id_is_named(place: Place) -> None:
    """The owner and the age, and who is held back by it; worst first."""
    place.position(4, "A")
    place.position(9, "B")
    place.told("A", 4, unfinished=[5, 7], age=61)
    place.told("B", 9)

    result = stuck(place)

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        (
            "stuck: things: A has 2 ids from 5 on unfinished, reserved 61 s ago by send (process"
            " host:7:cafe): the stream waits for id 5"
        ),
        (
            "stuck: things: A is at 4, 5 behind the writer at 9: linear readers wait for it, except"
            " where rows prove that nothing is missing"
        ),
    ]


def test_the_shape_of_the_json(place: Place) -> None:
    """Programs rely on it."""
    place.told("A", 4, unfinished=[5, 7], age=61)

    result = stuck(place, "--json")

    assert json.loads(result.stdout) == {
        "stuck": True,
        "holds": [
            {
                "stream": "things",
                "writer": "A",
                "why": "unfinished",
                "is_stuck": True,
                "text": "A has 2 ids from 5 on unfinished, reserved 61 s ago by send (process"
                " host:7:cafe): the stream waits for id 5",
                "position": 4,
                "behind": 0,
                "unfinished": 2,
                "first_id": 5,
                "age_seconds": 61.0,
                "owner": "send",
                "process": "host:7:cafe",
            }
        ],
        "tables": [],
    }


def test_a_silent_writer(place: Place) -> None:
    """It holds the others back only if it is behind them."""
    place.position(4, "A")
    place.position(9, "B")
    place.told("A", 4, silent=20)
    place.told("B", 9, silent=20)

    found = json.loads(stuck(place, "--json").stdout)["holds"]

    assert [("A", "silent", True), ("A", "behind", True), ("B", "silent", False)] == [
        (hold["writer"], hold["why"], hold["is_stuck"]) for hold in found
    ]


def test_a_writer_that_never_told(place: Place) -> None:
    """As those of a homeserver: it may be idle."""
    place.position(-4, "A")
    place.position(-9, "B")

    result = stuck(place)

    assert result.exit_code == 0
    assert result.stdout.startswith("held: things: A is at 4, 5 behind")


def test_a_database_without_writers(tmp_path: Path) -> None:
    """Most likely another one was meant."""
    result = stuck(Place("sqlite", tmp_path))

    assert result.exit_code == 1
    assert "has neither synrepl_writers nor stream_positions" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--database", "sqlite:x"], "--database needs --stuck"),
        (["--stuck", "--database", "mysql:x"], "the database must be"),
    ],
)
def test_wrong_arguments_end_with_exit_code_2(arguments: list[str], said: str) -> None:
    """Exit code 2."""
    result = CliRunner().invoke(main, ["streams", *arguments])

    assert (2, True) == (result.exit_code, said in result.stderr)


# -- from a daemon -----------------------------------------------------------------------------------------


def of_daemon(monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], *options: str) -> Result:
    """Run it against a daemon that says this of itself."""
    monkeypatch.setattr("synrepl.cli.options.DaemonTarget.ask_status", lambda self: status)
    return CliRunner().invoke(main, ["streams", "--stuck", "--url", URL, *options])


def test_a_daemon_without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, rather than that all is well."""
    result = of_daemon(monkeypatch, {"streams": {}})

    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("this daemon reads no streams from tables")


def test_a_daemon_whose_tables_are_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the writers told it."""
    writer = {
        "stream": "receipts",
        "writer": "A",
        "process": "host:7:cafe",
        "told_at": time.time(),
        "position": 4,
        "unfinished": 1,
        "oldest_id": 5,
        "oldest_since": time.time() - 60,
        "owner": "send",
        "age_seconds": 60.0,
    }
    ahead = writer | {"writer": "B", "position": 9, "unfinished": 0, "oldest_id": None, "oldest_since": None}
    tables = [
        {"stream": "receipts", "upto": 4, "limit": 4, "trouble": None, "right_at": 5.0},
        {
            "stream": "pushers",
            "upto": None,
            "limit": None,
            "trouble": "there is no table pushers",
            "right_at": 0.0,
        },
    ]

    result = of_daemon(monkeypatch, {"tables": tables, "writers": [writer, ahead]})
    found = json.loads(
        of_daemon(monkeypatch, {"tables": tables, "writers": [writer, ahead]}, "--json").stdout
    )

    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "stuck: pushers: there is no table pushers"
    assert result.stdout.splitlines()[1].startswith(
        "stuck: receipts: A has id 5 unfinished, reserved 60 s ago"
    )
    assert tables == found["tables"]
    assert [("A", "unfinished"), ("A", "behind")] == [(one["writer"], one["why"]) for one in found["holds"]]


def test_a_daemon_that_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line."""
    result = of_daemon(monkeypatch, {"writers": [{"stream": 5}]})

    assert result.exit_code == 1
    assert "cannot parse the status of tables" in result.stderr
