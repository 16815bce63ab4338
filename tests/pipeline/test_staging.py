"""Rows become facts to be written: what belongs together stays together, and in order."""

import json
from dataclasses import replace
from typing import Any

import pytest

from synrepl.errors import ConfigError
from synrepl.pipeline.source import data_sink
from synrepl.pipeline.source.daemon_client import SourceError
from synrepl.pipeline.source.data_sink import FactSink, StagedFacts, check_writable
from synrepl.pipeline.source.options import SourceOptions, read_options
from synrepl.pipeline.source.staging import build_facts, request_bodies

OPTIONS = read_options({"url": "http://127.0.0.1:9093", "stream": "push_rules"})


def line(serial: int, row: str | None, stream: str = "s", writer: str = "w") -> dict[str, Any]:
    """A line of an archive."""
    return {"serial": serial, "stream": stream, "writer": writer, "row": row}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        ([line(1, "[1]"), line(1, "[2]"), line(2, "[3]")], [("s", "w", "[[1],[2]]"), ("s", "w", "[[3]]")]),
        ([line(1, None), line(2, "[1]")], [("s", "w", "[[1]]")]),
        ([line(1, "[1]", "a"), line(2, "[1]", "b", "v")], [("a", "w", "[[1]]"), ("b", "v", "[[1]]")]),
        (  # Of two logs, or of a union with rows that have no serials.
            [line(7, "[1]", "a"), line(7, "[2]", "b"), line(7, "[3]", "b", "v")],
            [("a", "w", "[[1]]"), ("b", "w", "[[2]]"), ("b", "v", "[[3]]")],
        ),
        (
            [{"serial": None, "row": "[1]"}, {"serial": None, "stream": "b", "row": "[2]"}],
            [("push_rules", None, "[[1]]"), ("b", None, "[[2]]")],
        ),
        (
            [{"token": None, "row": "[1]"}, {"token": None, "row": "[2]"}],
            [("push_rules", None, "[[1]]"), ("push_rules", None, "[[2]]")],
        ),
        ([{"row": "[1]"}, {"row": "[2]"}], [("push_rules", None, "[[1]]"), ("push_rules", None, "[[2]]")]),
        ([{"token": 5, "row": "[1]"}, {"token": 5, "row": "[2]"}], [("push_rules", None, "[[1],[2]]")]),
        (
            [{"token": 5, "row": "[1]", "writer": "a"}, {"token": 5, "row": "[2]", "writer": "b"}],
            [("push_rules", "a", "[[1]]"), ("push_rules", "b", "[[2]]")],
        ),
        (
            [{"rows": "[[1],[2]]"}, {"rows": "[[3]]"}],
            [("push_rules", None, "[[1],[2]]"), ("push_rules", None, "[[3]]")],
        ),
    ],
)
def test_which_rows_are_one_fact(lines: list[dict[str, Any]], expected: list[Any]) -> None:
    """Those of one serial, or token; whole facts as they are; otherwise each is one."""
    assert expected == list(build_facts(lines, OPTIONS))


def test_a_request_has_neighbors_together_and_all_in_order() -> None:
    """Up to so many facts."""
    facts = [("a", "w", "[[1]]"), ("a", "w", "[[2]]"), ("b", None, "[[3]]"), ("a", "w", "[[4]]")]

    found = [(json.loads(body)["appends"], count) for body, count in request_bodies(facts, 3)]

    assert [
        (
            [
                {"stream": "a", "writer": "w", "facts": [[[1]], [[2]]]},
                {"stream": "b", "facts": [[[3]]]},
            ],
            3,
        ),
        ([{"stream": "a", "writer": "w", "facts": [[[4]]]}], 1),
    ] == found
    assert [] == list(request_bodies([], 3))


def test_what_cannot_be_written_is_told_before_it_is_tried() -> None:
    """With the column, or the option, that is missing."""
    from pyspark.sql.types import StringType, StructField, StructType

    def schema(*names: str) -> StructType:
        return StructType([StructField(name, StringType()) for name in names])

    options = SourceOptions(url=("http://127.0.0.1:9093",))
    with pytest.raises(ConfigError, match="column row, or rows"):
        check_writable(options, schema("stream"), overwrite=False)
    with pytest.raises(ConfigError, match="column stream, or the query the option stream"):
        check_writable(options, schema("row"), overwrite=False)
    with pytest.raises(ConfigError, match="can only be appended"):
        check_writable(options, schema("row", "stream"), overwrite=True)
    two = SourceOptions(url=("http://a", "http://b"))
    with pytest.raises(ConfigError, match="at one daemon"):
        check_writable(two, schema("row", "stream"), overwrite=False)
    with pytest.raises(ConfigError, match="needs the option `query`"):
        FactSink(options, is_streaming=True)
    check_writable(OPTIONS, schema("row"), overwrite=False)


class Appended:
    """A daemon that notes what is to become facts: the staged file, and its key."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.keys: list[str] = []

    def __call__(self, options: SourceOptions) -> "Appended":
        return self

    def send(self, request: Any, body: bytes) -> None:
        told = json.loads(body)
        self.files.append(told["staged"])
        self.keys.append(told["idempotency_key"])


def test_each_file_has_a_key_of_its_own_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two under one key would be stored once, which loses facts; one under two keys twice. Spark may do a
    batch again, with its messages in another order."""
    daemon = Appended()
    monkeypatch.setattr(data_sink, "SourceClient", daemon)
    options = replace(OPTIONS, query="q")
    messages = [StagedFacts(1, ("c", "d")), None, StagedFacts(0, ("a", "b"))]

    FactSink(options, is_streaming=True).commit([*messages], 7)
    again = list(daemon.keys)
    FactSink(options, is_streaming=True).commit([*reversed(messages)], 7)
    FactSink(options, is_streaming=True).commit([*messages], 8)
    FactSink(replace(OPTIONS, query="p"), is_streaming=True).commit([*messages], 7)

    assert ["a", "b", "c", "d"] * 4 == daemon.files
    assert again == daemon.keys[4:8]
    assert 3 * 4 == len(set(daemon.keys))


def test_keys_do_not_depend_on_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is repeated after a restart, which may cut it into other tasks."""
    daemon = Appended()
    monkeypatch.setattr(data_sink, "SourceClient", daemon)
    options = replace(OPTIONS, query="q")

    FactSink(options, is_streaming=True).commit([StagedFacts(0, ("a", "b"))], 7)
    FactSink(options, is_streaming=True).commit([StagedFacts(0, ("a",)), StagedFacts(1, ("b",))], 7)

    assert (["a", "b"] * 2, daemon.keys[:2] * 2) == (daemon.files, daemon.keys)


def test_a_batch_with_its_facts_in_other_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon says that a key was used for another request; a retry would never do."""

    class Refusing(Appended):
        def send(self, request: Any, body: bytes) -> None:
            error = SourceError("refuses the request: idempotency_key_reused")
            error.code = "idempotency_key_reused"
            raise error

    monkeypatch.setattr(data_sink, "SourceClient", Refusing())

    with pytest.raises(SourceError, match="batch 7 of the query q was appended before"):
        FactSink(replace(OPTIONS, query="q"), is_streaming=True).commit([StagedFacts(0, ("a",))], 7)


def test_writes_without_a_name_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same frame written twice is meant twice, unless its query has a name."""
    daemon = Appended()
    monkeypatch.setattr(data_sink, "SourceClient", daemon)

    for _ in range(2):
        FactSink(OPTIONS).commit([StagedFacts(0, ("a",))])

    assert 2 == len(set(daemon.keys))
