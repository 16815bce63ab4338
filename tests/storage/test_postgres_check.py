"""What is in the way of a log in PostgreSQL: a look says it, and the start says the same."""

from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from synrepl.errors import StorageError
from synrepl.storage.databases import engine_for
from tests.cli.test_targets import run
from tests.postgres import new_database, shared_server
from tests.servers.postgres import PostgresServer

OWNER: Final = "CREATE SCHEMA synrepl AUTHORIZATION {user}"
MAY_MAKE: Final = "GRANT CREATE ON DATABASE {database} TO {user}"

CASES: Final = {
    "no rights": ([], ["may not make the schema synrepl"]),
    "the right to make schemas": ([MAY_MAKE], []),
    "a schema of one's own": ([OWNER], []),
    "a schema of others": ([MAY_MAKE, "CREATE SCHEMA synrepl"], ["may not use the schema synrepl"]),
    "a table of others": ([OWNER, "CREATE TABLE synrepl.facts (a int)"], ["may not read and write facts"]),
    "read only, as the user": (
        [MAY_MAKE, "ALTER ROLE {user} SET default_transaction_read_only = on"],
        ["ALTER ROLE {user} IN DATABASE {database} SET default_transaction_read_only = off"],
    ),
    "read only, as the database": (
        [MAY_MAKE, "ALTER DATABASE {database} SET default_transaction_read_only = on"],
        ["transactions are read only"],
    ),
    "read only, and no rights": (
        ["ALTER DATABASE {database} SET default_transaction_read_only = on"],
        ["transactions are read only", "may not make the schema synrepl"],
    ),
    "time-outs of others": (
        [
            MAY_MAKE,
            "ALTER ROLE {user} SET statement_timeout = 5000",
            "ALTER DATABASE {database} SET lock_timeout = 7000",
            "ALTER ROLE {user} SET idle_in_transaction_session_timeout = 9000",
        ],
        [],
    ),
}


@pytest.fixture
def names() -> tuple[str, str, str]:
    """A user without rights, a database, and the URL with both. The server ends with the tests."""
    url = new_database()
    database = str(conninfo_to_dict(url)["dbname"])
    user = f"user_of_{database}"
    shared_server().execute(f"CREATE ROLE {user} LOGIN")
    return user, database, url.replace("//postgres@", f"//{user}@")


def start(url: str) -> str:
    """What the start says; empty if the log is open."""
    engine = engine_for(url)
    try:
        engine.open()
    except StorageError as error:
        return error.why
    engine.close()
    return ""


@pytest.mark.parametrize("case", CASES)
def test_a_look_says_what_the_start_would(case: str, names: tuple[str, str, str]) -> None:
    """Each thing that is in the way, and nothing else."""
    user, database, url = names
    statements, expected = CASES[case]
    admin = url.replace(f"//{user}@", "//postgres@")
    for statement in statements:
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(sql.SQL(statement.format(user=user, database=database)))

    found = engine_for(url).database.hindrances()
    told = start(url)

    assert len(expected) == len(found)
    for one, words in zip(found, expected, strict=True):
        assert words.format(user=user, database=database) in one
        assert one in told
    assert bool(told) is bool(expected)


@pytest.mark.parametrize(("encoding", "is_fine"), [("LATIN1", False), ("SQL_ASCII", True)])
def test_an_encoding_that_does_not_have_all_names(encoding: str, is_fine: bool) -> None:
    """As the start finds, which writes a name and reads it."""
    name = f"encoded_{encoding.lower()}"
    options = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    shared_server().execute(f"CREATE DATABASE {name} {options}")
    url = _named(name)

    found = engine_for(url).database.hindrances()

    assert is_fine is not bool(found)
    assert is_fine is not bool(start(url))
    assert is_fine or encoding in found[0]


def _named(name: str) -> str:
    parameters = conninfo_to_dict(new_database())
    return f"postgresql://{parameters['user']}@/{name}?host={parameters['host']}"


def test_a_standby_is_named() -> None:
    """It takes no writes."""
    with PostgresServer() as primary, PostgresServer(primary=primary) as standby:
        found = engine_for(standby.url).database.hindrances()
        told = start(standby.url)

    assert found
    assert found[0] in told
    assert "the server is a standby" in told


def test_config_check_asks_the_server(tmp_path: Path, names: tuple[str, str, str]) -> None:
    """Unless it is told to look at the file alone."""
    user, database, url = names
    path = tmp_path / "synrepl.yaml"
    path.write_text(f"server_name: example.org\ndatabase: {url}\n")

    asked = run("config", "check", str(path))
    offline = run("config", "check", str(path), "--offline")
    away = tmp_path / "away.yaml"
    away.write_text(f"server_name: example.org\ndatabase: postgresql://{user}@127.0.0.1:1/{database}\n")

    assert (1, 0) == (asked.exit_code, offline.exit_code)
    assert f"the user {user} may not make the schema synrepl" in asked.stderr
    assert "primary; server name example.org" in asked.stdout
    assert 1 == run("config", "check", str(away)).exit_code
    assert 0 == run("config", "check", str(away), "--offline").exit_code
