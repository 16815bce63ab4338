"""The examples in the docstrings of the public id classes run as they are written."""

import ast
import inspect
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

import synrepl
from synrepl.ids import writer_session
from synrepl.storage.threads import ImmediateThread
from tests.storage.id_tables.databases import DirectPool

Run = Callable[[str], None]


def example(documented: object) -> str:
    """The block after the double colon in a docstring."""
    text = inspect.getdoc(documented) or ""
    _, _, rest = text.partition("::\n\n")
    lines = []
    for line in rest.split("\n"):
        if line and not line.startswith("    "):
            break
        lines.append(line)
    assert lines, documented
    return inspect.cleandoc("\n".join(lines))


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the examples take as given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writer_session, "ReactorThread", lambda reactor, name: ImmediateThread())
    connection = sqlite3.connect("hs.db")
    connection.execute("CREATE TABLE notes (stream_id BIGINT, instance_name TEXT, text TEXT)")
    connection.execute("CREATE TABLE rooms (room_id TEXT, name TEXT)")
    connection.commit()
    return {
        "Any": Any,
        "INSERT": "INSERT INTO notes VALUES (?, ?, ?)",
        "partial": partial,
        "pool": DirectPool(connection),
        "reactor": Clock(),
        "sqlite3": sqlite3,
        "synrepl": synrepl,
    }


@pytest.fixture
def run(names: dict[str, Any]) -> Run:
    def run(text: str) -> None:
        code = compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        coroutine = eval(code, names)  # our own docstrings
        if coroutine is not None:
            results: list[object] = []
            Deferred.fromCoroutine(coroutine).addBoth(results.append)
            assert [None] == results

    return run


def test_the_layout_of_a_stream(names: dict[str, Any], run: Run) -> None:
    run(example(synrepl.IdTable))
    run(example(synrepl.IdStream))

    assert ("w1", "w2") == names["stream"].writers


def test_a_session_and_its_generator(names: dict[str, Any], run: Run) -> None:
    run(example(synrepl.MultiWriterIdGenerator))
    run("await synrepl.transact(pool, ids.database.create)")
    run(example(synrepl.WriterSession).replace("...", "token = await write('hello')"))

    assert (2, False) == (names["token"], names["ids"].session.is_held)


def test_writing_in_a_transaction(names: dict[str, Any], run: Run) -> None:
    run(example(synrepl.StreamIdGenerator))
    run("await synrepl.transact(pool, ids.database.create)")
    run("await ids.start()")
    run(example(synrepl.MultiWriterIdGenerator.within))
    run(example(synrepl.transact))

    assert {"w1": 3} == names["ids"].positions()


def test_an_invalidation(names: dict[str, Any], run: Run) -> None:
    run(example(synrepl.StreamIdGenerator))
    run("await synrepl.transact(pool, ids.database.create)")
    run("await ids.start()")
    text = example(synrepl.InvalidationWriter)
    first, rest = text.split("\n", 1)
    run(f"{first}\nawait synrepl.transact(pool, writer.create)")
    run(rest)

    query = "SELECT cache_func, keys FROM cache_invalidation_stream_by_instance"
    assert [("get_room_name", '["!r:hs"]')] == names["pool"].connection.execute(query).fetchall()
    assert {"w1": 2} == names["ids"].positions()
