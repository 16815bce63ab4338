"""PgBouncer between Synapse and its database (matrix-org/synapse#4473)."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from synrepl.errors import ConfigError
from synrepl.homeserver.configuration import read_homeserver
from synrepl.homeserver.poolers import read_pooler
from tests.homeserver.test_files import PARTLY, UNWELL, WELL, WHOLE, WORKER, WRONG, run, write

ARGS = {"user": "synapse", "dbname": "synapse", "host": "127.0.0.1", "port": 6432}
INI = """\
; a comment
%include /etc/pgbouncer/more.ini
[databases]
{databases}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
pool_mode = {mode}
[users]
{users}
"""
SYNAPSE = "synapse = host=127.0.0.1 port=5432 dbname=synapse"


def database(**args: object) -> dict[str, Any]:
    """A homeserver's file with this database."""
    return {**WHOLE, "database": {"name": "psycopg2", "args": {**ARGS, **args}}}


def ini(
    path: Path, databases: str = SYNAPSE, *, mode: str = "transaction", port: object = 6432, users: str = ""
) -> Path:
    """A file of PgBouncer."""
    path.write_text(INI.format(databases=databases, mode=mode, port=port, users=users))
    return path


def kinds(found: dict[str, Any]) -> list[str]:
    """The kinds of findings and notes about poolers."""
    return [one["kind"] for one in [*found["findings"], *found["notes"]] if one["kind"].startswith("pool")]


@pytest.mark.parametrize("is_given", [True, False])
def test_a_pooler_that_shares_connections(tmp_path: Path, is_given: bool) -> None:
    """Given among the files, or beside them; all processes that go through it are named."""
    words = write(tmp_path, homeserver=database(), worker1=WORKER)
    path = ini(tmp_path / ("pool.ini" if is_given else "pgbouncer.ini"))
    found = run(*words, *(["--homeserver", path] if is_given else []), code=UNWELL)
    one = next(one for one in found["findings"] if one["kind"] == "pooled_sessions")

    assert one["why"].startswith("master and w1 go to the database synapse through the PgBouncer of")
    assert f"{path}, with `pool_mode = transaction`" in one["why"]
    assert "set `pool_mode = session`" in one["remedy"]
    assert "ALTER ROLE synapse SET default_transaction_isolation = 'repeatable read'" in one["remedy"]
    assert ["pooled_sessions"] == kinds(found)


@pytest.mark.parametrize(
    ("options", "args", "told"),
    [
        ({"mode": "session"}, {}, []),
        ({"mode": "Statement"}, {}, ["pooled_sessions"]),
        ({"databases": "* = host=db"}, {}, ["pooled_sessions"]),
        ({"databases": f"{SYNAPSE} pool_mode=session"}, {}, []),
        ({"databases": f"{SYNAPSE} pool_mode='transaction'", "mode": "session"}, {}, ["pooled_sessions"]),
        ({"users": "synapse = pool_mode=session"}, {}, []),
        ({"users": "other = pool_mode=session"}, {}, ["pooled_sessions"]),
        # It passes this one on to nobody: it is another PgBouncer.
        ({"databases": "other = host=db"}, {}, ["pooler"]),
        ({"port": 7000}, {}, ["pooler"]),
        ({"port": 7000}, {"port": "7000"}, ["pooled_sessions"]),
        ({"port": "none"}, {}, ["pooled_sessions"]),
        ({"databases": f"  a = host=b\n  {SYNAPSE}"}, {}, ["pooled_sessions"]),
        ({"databases": '"synapse" = host=db'}, {}, ["pooled_sessions"]),
        # PostgreSQL itself, on another machine at the same port.
        ({"databases": "* = host=db port=5432", "port": 5432}, {"host": "db", "port": 5432}, []),
        ({}, {"port": 5432}, []),
        ({}, {"port": "${PORT}"}, []),
    ],
)
def test_what_goes_through_it(
    tmp_path: Path, options: dict[str, Any], args: dict[str, Any], told: list[str]
) -> None:
    words = write(tmp_path, homeserver=database(**args))
    ini(tmp_path / "pgbouncer.ini", **options)

    code = UNWELL if "pooled_sessions" in told else 3 if args.get("port") == "${PORT}" else WELL
    assert told == kinds(run(*words, code=code))


def test_without_its_file_the_port_is_a_note(tmp_path: Path) -> None:
    """Of the database of one process alone too, and of any of `databases`; SQLite has no port."""
    several = {"databases": {"main": database()["database"], "state": database(port=5432)["database"]}}

    assert ["pooler"] == kinds(run(*write(tmp_path, homeserver={**WHOLE, **several}), code=WELL))
    assert [] == kinds(run(*write(tmp_path, homeserver=WHOLE), code=WELL))


def test_a_file_that_is_none_of_pgbouncer(tmp_path: Path) -> None:
    """Given, it is refused by its name; beside the files nobody asked for it."""
    words = write(tmp_path, homeserver=database(port=5432))
    path = tmp_path / "pgbouncer.ini"
    for text, why in (
        ("[other]\nx = 1\n", "has no section [pgbouncer]"),
        ("x = 1\n", "it is no INI"),
        ("[pgbouncer\n", "it is no INI"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_pooler(path)
        assert why in str(caught.value)
        run(*words, code=WELL)
    from click.testing import CliRunner

    from synrepl.cli import main

    result = CliRunner().invoke(main, ["inspect", "--files", *map(str, words), "--homeserver", str(path)])
    assert (WRONG, True) == (result.exit_code, "it is no INI" in result.output)


def test_a_file_of_pgbouncer_alone_is_told_what_it_goes_with(tmp_path: Path) -> None:
    """It says nothing of a homeserver, and is read beside the homeserver's files."""
    from click.testing import CliRunner

    from synrepl.cli import main

    path = ini(tmp_path / "pgbouncer.ini")
    result = CliRunner().invoke(main, ["inspect", "--files", "--homeserver", str(path)])
    assert result.exit_code == WRONG
    assert "is a file of PgBouncer" in result.output
    assert f"--homeserver homeserver.yaml --homeserver {path}" in result.output


@pytest.mark.parametrize(
    ("databases", "more", "cp_max", "said"),
    [
        (SYNAPSE, "", 10, []),
        (
            SYNAPSE,
            "",
            11,
            ["may open 22 connections (`cp_max` of each) through the PgBouncer of", "which has 20 to"],
        ),
        (f"{SYNAPSE} pool_size=30", "", 11, []),
        (SYNAPSE, "default_pool_size = 30", 11, []),
        (SYNAPSE, "reserve_pool_size = 2", 11, []),
        (
            "* = host=10.0.0.1",
            "default_pool_size = 8",
            5,
            ["may open 10 connections", "which has 8 to PostgreSQL"],
        ),
        (
            f"{SYNAPSE} pool_size=200",
            "max_client_conn = 90",
            50,
            ["to 100 and what other", "takes 90 of all clients"],
        ),
    ],
)
def test_a_pool_that_is_smaller_than_those_of_the_processes(
    tmp_path: Path, databases: str, more: str, cp_max: int, said: list[str]
) -> None:
    """Each connection of Synapse holds one of PgBouncer in the mode session (autobase-tech/autobase#89)."""
    words = write(tmp_path, homeserver=database(cp_max=cp_max), worker1=WORKER)
    ini(tmp_path / "pgbouncer.ini", databases, mode=f"session\n{more}")
    found = run(*words, code=WELL)

    notes = [one for one in found["notes"] if one["kind"] == "small_pool"]
    assert bool(said) == bool(notes)
    assert all(text in notes[0]["why"] + notes[0]["remedy"] for text in said)


def manifest(kind: str, key: str, text: str, name: str = "pgbouncer.ini") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "pool"}, key: {name: text}}


TEXT = INI.format(databases=SYNAPSE, mode="transaction", port=6432, users="")
MANIFESTS = {
    "ConfigMap": manifest("ConfigMap", "data", TEXT),
    "Secret with text": manifest("Secret", "stringData", TEXT),
    "Secret": manifest("Secret", "data", base64.b64encode(TEXT.encode()).decode()),
    "List": {"apiVersion": "v1", "kind": "List", "items": [manifest("ConfigMap", "data", TEXT)]},
}


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize("document", MANIFESTS.values(), ids=list(MANIFESTS))
def test_a_pooler_in_a_manifest(tmp_path: Path, document: dict[str, Any], is_folder: bool) -> None:
    """As a chart renders it (code-tool/matrix-stack): it is as good as the file, alone or in a folder."""
    shared = manifest("Secret", "stringData", yaml.safe_dump(database()), "homeserver.yaml")
    paths = [tmp_path / "pooler.yaml", tmp_path / "synapse.yaml"]
    for path, content in zip(paths, (document, shared), strict=True):
        path.write_text(yaml.safe_dump(content))
    given = [tmp_path] if is_folder else paths
    found = run(*[word for path in given for word in ("--homeserver", path)], code=UNWELL)

    assert ["pooled_sessions"] == kinds(found)
    assert f"through the PgBouncer of {paths[0]}: pool/pgbouncer.ini" in found["findings"][0]["why"]
    assert [] == found["unseen"]


def test_a_manifest_beside_a_plain_file(tmp_path: Path) -> None:
    """It is not told to be no configuration of Synapse."""
    (tmp_path / "pool").write_text(yaml.safe_dump(MANIFESTS["ConfigMap"]))
    found = run(*write(tmp_path, homeserver=database()), "--homeserver", tmp_path / "pool", code=UNWELL)
    assert (["pooled_sessions"], []) == (kinds(found), found["unseen"])


def test_a_manifest_of_another_ini(tmp_path: Path) -> None:
    document = manifest("ConfigMap", "data", "[other]\na = 1\n")
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(document))
    write(tmp_path, homeserver=database())
    found = run(
        "--homeserver", tmp_path / "homeserver.yaml", "--homeserver", tmp_path / "other.yaml", code=PARTLY
    )
    assert ["pooler"] == kinds(found)


def test_a_manifest_of_a_pooler_alone(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(MANIFESTS["ConfigMap"]))
    with pytest.raises(ConfigError, match="is a file of PgBouncer, and says nothing of a homeserver"):
        read_homeserver([tmp_path / "pool.yaml"])


@pytest.mark.parametrize(
    ("engine", "worker", "expected"),
    [
        ("sqlite3", WORKER, ["w1"]),
        ("psycopg2", WORKER, []),
        ("sqlite3", None, []),
    ],
)
def test_workers_on_a_file_of_sqlite(
    tmp_path: Path, engine: str, worker: dict[str, Any] | None, expected: list[str]
) -> None:
    """There Synapse writes no rows for caches, so that no process hears of what another changed."""
    config = {**database(), "database": {"name": engine, "args": {"database": "x"}}}
    words = write(tmp_path, homeserver=config, **({"worker1": worker} if worker else {}))
    found = run(*words, code=UNWELL if expected else WELL)

    assert expected == [one["process"] for one in found["findings"] if one["kind"] == "workers_on_sqlite"]
