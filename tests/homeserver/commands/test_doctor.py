"""``synrepl doctor``: words, JSON, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from synrepl.cli import main
from tests.homeserver.doctor.places import Place

CONFIG = """
table_streams:
  - stream: events
    position: things
    table: facts_of_things
    sequence: things_sequence
    writers: [A]
    row: [stream_id]
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A database, and a configuration that names its table."""
    (tmp_path / "synrepl.yaml").write_text(CONFIG)
    place = Place("sqlite", tmp_path)
    place.make_ids()
    return place


def doctor(place: Place, *options: str) -> Result:
    """Run it, with the configuration."""
    config = str(place.database.path.parent / "synrepl.yaml")
    return CliRunner().invoke(main, ["doctor", "--database", place.url, "--config", config, *options])


def test_a_healthy_database_is_reported_as_such(place: Place) -> None:
    """Said in so many words."""
    place.make_log(("events", "A", 0, 1))
    place.set_sequence(2)

    result = doctor(place)

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{place.database.path}: a database of synrepl, 1 stream examined, 1 fact of the log checked",
        "nothing is wrong with the ids of 1 stream, and 1 fact of the log",
    ]


def test_idle_writers_are_one_line(place: Place) -> None:
    """They hold nothing back: most are worker processes that were removed."""
    (place.database.path.parent / "synrepl.yaml").write_text(CONFIG.replace("[A]", "[A, B]"))
    place.set_sequence(9)
    for writer in "AB":
        place.position(9, writer)
        place.told(writer, 9, silent=86_400)

    result = doctor(place)

    assert (0, "") == (result.exit_code, result.stderr)
    assert result.stdout.splitlines()[1:] == [
        "note: idle or gone: 2 writers of things; synrepl doctor --json names them",
        "nothing is wrong with the ids of 1 stream",
    ]


def test_what_is_wrong_is_said_and_mended(place: Place) -> None:
    """First what it is, then what to do; mended once, there is nothing more to say."""
    place.set_sequence(4)
    place.position(36)

    found, mended, after = doctor(place), doctor(place, "--fix"), doctor(place)

    assert (1, 0, 0) == (found.exit_code, mended.exit_code, after.exit_code)
    assert found.stdout.splitlines()[1:] == [
        (
            "error: things: sequence things_sequence is at 4, behind the stored positions of its writers"
            " (36); without a repair it would reuse ids"
        ),
        "    run synrepl doctor --fix; synrepl's id generators make the same repair when a writer starts",
        "    UPDATE synrepl_sequences SET value = max(value, 36) WHERE name = 'things_sequence';",
    ]
    assert [line.split(":")[0] for line in mended.stdout.splitlines()[1:]] == [
        "mended",
        "nothing is wrong any more with the ids of 1 stream",
    ]
    assert after.stdout.splitlines()[1:] == ["nothing is wrong with the ids of 1 stream"]


def test_the_shape_of_the_json(place: Place) -> None:
    """Programs rely on it."""
    place.make_log(("events", "A", 0, 1))
    place.position(36)

    result = doctor(place, "--json")

    assert json.loads(result.stdout) == {
        "database": str(place.database.path),
        "kind": "synrepl",
        "streams": ["things"],
        "complaints": [
            {
                "severity": "error",
                "kind": "sequence_behind_positions",
                "stream": "things",
                "text": "sequence things_sequence is at 1, behind the stored positions of its writers"
                " (36); without a repair it would reuse ids",
                "remedy": "run synrepl doctor --fix; synrepl's id generators make the same repair when"
                " a writer starts",
                "statement": "UPDATE synrepl_sequences SET value = max(value, 36)"
                " WHERE name = 'things_sequence'",
                "mended": False,
            }
        ],
        "facts_checked": 1,
        "sequences": [],
        "unique_tables": [],
        "healthy": False,
    }
    assert result.exit_code == 1


def test_a_homeservers_database_is_not_mended(tmp_path: Path) -> None:
    """The statements are printed, each once, and that nothing was done."""
    place = Place("postgresql", tmp_path)
    place.make_homeserver()
    place.do(
        "CREATE TABLE receipts_linearized (stream_id BIGINT, instance_name TEXT)",
        "CREATE SEQUENCE receipts_sequence",
        "INSERT INTO receipts_linearized VALUES (9, 'master')",
        "INSERT INTO stream_positions VALUES ('receipts', 'master', 9)",
    )

    result = CliRunner().invoke(main, ["doctor", "--database", place.url, "--fix"])

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "a Synapse homeserver's database, 1 stream examined" in lines[0]
    assert 1 == sum("setval" in line for line in lines)
    assert 1 == sum("stop the homeserver, run the statement" in line for line in lines)
    assert 2 == sum("sequence receipts_sequence is at" in line for line in lines)
    assert 1 == sum(line.startswith("    also: sequence receipts_sequence is at") for line in lines)
    assert lines[-1].startswith("the homeserver's tables were not changed: they are only read.")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--database", "sqlite:/no/such/file"], 1, "there is no file /no/such/file"),
        (["--database", "postgresql://nobody@127.0.0.1:1/x"], 1, "Connection refused"),
        (["--database", "mysql://me:secret@host/x"], 2, "the database must be sqlite:PATH or postgresql://"),
        (["--database", "sqlite:"], 2, "the database must be sqlite:PATH"),
        (["--database", "postgresql://[/x"], 2, "is not a PostgreSQL URL"),
        ([], 2, "Missing option '--database'"),
        (["--database", "sqlite:x", "--config", "/no/such.yaml"], 2, "/no/such.yaml"),
    ],
)
def test_trouble_and_wrong_usage(arguments: list[str], code: int, said: str) -> None:
    """In one line, without a traceback."""
    result = CliRunner().invoke(main, ["doctor", *arguments])

    assert code == result.exit_code
    assert said in result.stderr
    assert "secret" not in result.stderr
    assert isinstance(result.exception, SystemExit)


# -- before a start ----------------------------------------------------------------------------------------


@pytest.fixture
def homeserver(tmp_path: Path) -> Place:
    """A homeserver's database on PostgreSQL with one stream, and ``homeserver.yaml`` that names it."""
    place = Place("postgresql", tmp_path)
    place.make_homeserver()
    place.do(
        "CREATE TABLE receipts_linearized (stream_id BIGINT PRIMARY KEY, instance_name TEXT)",
        "CREATE SEQUENCE receipts_sequence START 2",
        "SELECT setval('receipts_sequence', 4)",
    )
    write_homeserver(tmp_path, {"name": "psycopg2", "args": {"dsn": place.url, "cp_min": 1}})
    return place


def write_homeserver(folder: Path, database: dict[str, Any]) -> None:
    """The homeserver's file; its database is given in another one."""
    (folder / "homeserver.yaml").write_text("server_name: example.org\n")
    (folder / "database.yaml").write_text(yaml.safe_dump({"database": database}))


def files_in(folder: Path) -> list[str]:
    """The options that name them."""
    return [word for name in ("homeserver", "database") for word in ("--homeserver", f"{folder}/{name}.yaml")]


def before_start(folder: Path, *options: str) -> Result:
    """Run it, as an init container does."""
    return CliRunner().invoke(main, ["doctor", *files_in(folder), "--before-start", *options])


def test_what_a_homeserver_would_be_refused_for_is_raised(homeserver: Place, tmp_path: Path) -> None:
    """It may not start before, and may after; once raised there is nothing to do."""
    homeserver.position(36, "master", "receipts")
    first_line = f"{homeserver.database.name}: a Synapse homeserver's database, 1 stream examined"

    found, mended, after = (before_start(tmp_path, *options) for options in ([], ["--apply"], ["--apply"]))

    assert (1, 0, 0) == (found.exit_code, mended.exit_code, after.exit_code)
    assert found.stdout.splitlines() == [
        first_line,
        (
            "error: receipts: sequence receipts_sequence is at 4, behind the stored positions of its writers"
            " (36); without a repair it would reuse ids; the homeserver refuses to start with it"
        ),
        "    add --apply, or run the statement, as the owner of the sequence",
        "    SELECT setval('receipts_sequence', greatest(36, (SELECT last_value FROM receipts_sequence)));",
        "the homeserver would be refused, or would reuse ids",
    ]
    assert mended.stdout.splitlines() == [
        first_line,
        "raised receipts_sequence from 4 to 36",
        "the homeserver may start",
    ]
    assert after.stdout.splitlines() == [first_line, "the homeserver may start"]
    assert "" == found.stderr + mended.stderr + after.stderr


def test_the_shape_of_the_json_before_a_start(homeserver: Place, tmp_path: Path) -> None:
    """Programs rely on it."""
    homeserver.position(36, "master", "receipts")

    found, mended = before_start(tmp_path, "--json"), before_start(tmp_path, "--json", "--apply")

    known = {
        "database": homeserver.database.name,
        "kind": "synapse",
        "streams": ["receipts"],
        "facts_checked": None,
        "sequences": [],
        "unique_tables": [],
    }
    seen = json.loads(found.stdout)
    assert ["sequence_behind_positions"] == [one["kind"] for one in seen.pop("complaints")]
    assert {**known, "healthy": False, "raised": [], "may_start": False} == seen
    raised = {"stream": "receipts", "sequence": "receipts_sequence", "before": 4, "after": 36}
    assert {
        **known,
        "complaints": [],
        "healthy": True,
        "raised": [raised],
        "may_start": True,
    } == json.loads(mended.stdout)


def test_a_part_that_cannot_be_read_before_a_start(homeserver: Place, tmp_path: Path) -> None:
    """Neither yes nor no: its exit code is that of a database which cannot be looked at."""
    homeserver.do("ALTER TABLE stream_positions RENAME COLUMN stream_id TO token")

    result = before_start(tmp_path)

    assert 2 == result.exit_code
    assert [
        'error: receipts: not examined: column "stream_id" does not exist',
        "whether the homeserver may start is not known",
    ] == result.stdout.splitlines()[1:]


def test_the_ordinary_examination_of_the_configured_database(homeserver: Place, tmp_path: Path) -> None:
    """As with its URL: it repairs nothing in it."""
    homeserver.position(36, "master", "receipts")

    by_file = CliRunner().invoke(main, ["doctor", *files_in(tmp_path), "--fix"])
    by_url = CliRunner().invoke(main, ["doctor", "--database", homeserver.url, "--fix"])

    assert (1, by_url.stdout, "") == (by_file.exit_code, by_file.stdout, by_file.stderr)
    assert [(4,)] == homeserver.do("SELECT last_value FROM receipts_sequence")


def test_a_homeserver_on_sqlite_may_start(tmp_path: Path) -> None:
    """Also for the first time: whether there is a file, and what is in it, is not looked at."""
    write_homeserver(tmp_path, {"name": "sqlite3", "args": {"database": str(tmp_path / "hs.db")}})

    result = before_start(tmp_path, "--apply")

    assert (0, "") == (result.exit_code, result.stderr)
    assert [f"{tmp_path}/hs.db: an SQLite file, which is not opened", "the homeserver may start"] == [
        line for line in result.stdout.splitlines() if not line.startswith("note: a homeserver on SQLite")
    ]


def test_waiting_is_told_and_ends(tmp_path: Path) -> None:
    """With the reason, and without the password."""
    arguments = {"host": "127.0.0.1", "port": 1, "user": "synapse", "password": "s3cret", "database": "s"}
    write_homeserver(tmp_path, {"name": "psycopg2", "args": arguments})

    result = before_start(tmp_path, "--wait", "0.5", "--apply", "--json")

    assert (2, "") == (result.exit_code, result.stdout)
    waiting, error = result.stderr.splitlines()
    assert waiting.startswith("waiting for the database, 0 s left: connect failed: postgresql://synapse@")
    assert error.startswith("Error: connect failed: postgresql://synapse@127.0.0.1:1/s: ")
    assert "s3cret" not in result.stderr


def test_the_log_when_its_tables_are_elsewhere(place: Place) -> None:
    """One configuration serves both databases."""
    place.make_log(("events", "A", 0, 1))
    place.do("DROP TABLE facts_of_things", "DROP TABLE stream_positions")
    config = place.database.path.parent / "synrepl.yaml"
    config.write_text(f"{CONFIG}\ndatabase: {place.url}\ntables_database: sqlite:elsewhere.db\n")

    result = doctor(place)

    assert (0, "nothing is wrong with 1 fact of the log") == (
        result.exit_code,
        result.stdout.splitlines()[-1],
    )


def test_a_database_without_known_tables_is_not_called_healthy(tmp_path: Path) -> None:
    """Not "nothing is wrong"."""
    place = Place("sqlite", tmp_path)
    place.do("CREATE TABLE facts (about TEXT)")

    result = CliRunner().invoke(main, ["doctor", "--database", place.url])

    assert result.exit_code == 1
    assert "error: this database has neither a synrepl log" in result.stdout
    assert "nothing is wrong" not in result.stdout
