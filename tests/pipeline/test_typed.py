"""Typed columns of streams: layouts, decoding in tasks, and the same in SQL."""

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from synrepl.errors import UnknownStream
from synrepl.pipeline.source.rows import COLUMNS, RESERVED, decode_rows, make_layout
from synrepl.pipeline.typed import catalog_layouts, columns, layout_of, typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED: list[dict[str, Any]] = [
    {
        "name": "packages",
        "key": ["name"],
        "columns": {"name": "str", "size": "int?", "ok": "bool", "rate": "float", "row": "str", "at": "json"},
    },
    {"name": "notes", "columns": None},
]

EV = ["$e", "!r", "m.room.member", "@a", None, None, "join", False, True]
NO_EVENT: dict[str, Any] = dict.fromkeys(name for name, _ in columns("events"))
NO_RECEIPT: dict[str, Any] = dict.fromkeys(name for name, _ in columns("receipts"))
RECEIPT = {**NO_RECEIPT, "room_id": "!r", "receipt_type": "m.read", "user_id": "@a", "event_id": "$e"}
PACKAGE = {"name": "a", "size": 1, "ok": True, "rate": "0.5", "row_": "x", "at": '[{"b":1}]'}

CASES: list[tuple[str, str | None, dict[str, Any]]] = [
    (
        "receipts",
        '["!r","m.read","@a","$e","$t",{"ts":1,"a":"\\u00e9"}]',
        {**RECEIPT, "thread_id": "$t", "data": '{"a":"é","ts":1}'},
    ),
    ("receipts", '["!r","m.read","@a","$e",{"ts":1}]', {**RECEIPT, "data": '{"ts":1}'}),
    ("receipts", '["!r","m.read","@a","$e",null,{}]', {**RECEIPT, "data": "{}"}),
    ("receipts", '[5,"m.read","@a","$e",null,{}]', NO_RECEIPT),
    ("receipts", '["!r","m.read",5,"$e",null,{}]', NO_RECEIPT),
    ("receipts", '["!r","m.read"]', NO_RECEIPT),
    ("receipts", '{"room_id":"!r"}', NO_RECEIPT),
    ("receipts", "7", NO_RECEIPT),
    ("receipts", '["!r",', NO_RECEIPT),
    ("receipts", "", NO_RECEIPT),
    ("receipts", None, NO_RECEIPT),
    ("device_lists", '["@a"]', {"user_id": "@a"}),
    ("device_lists", '["@a",true,false]', {"user_id": "@a", "is_signature": True, "hosts_calculated": False}),
    (
        "device_lists",
        '["@a",true,false,"h"]',
        {"user_id": "@a", "is_signature": True, "hosts_calculated": False, "destination": "h"},
    ),
    (
        "events",
        json.dumps(["ev", EV]),
        {
            **NO_EVENT,
            "kind": "ev",
            "event_id": "$e",
            "room_id": "!r",
            "type": "m.room.member",
            "state_key": "@a",
            "membership": "join",
            "rejected": False,
            "outlier": True,
        },
    ),
    (
        "events",
        json.dumps(["ev", EV[:5]]),
        {
            **NO_EVENT,
            "kind": "ev",
            "event_id": "$e",
            "room_id": "!r",
            "type": "m.room.member",
            "state_key": "@a",
        },
    ),
    ("events", '["state-all",["!r"]]', {**NO_EVENT, "kind": "state-all", "room_id": "!r"}),
    ("events", '["state-all","!r"]', NO_EVENT),
    ("events", '["of-tomorrow",["!r"]]', NO_EVENT),
    ("events", '[["ev"],["!r"]]', NO_EVENT),
    ("caches", '["f",["a"],12]', {"cache_func": "f", "keys": '["a"]', "invalidation_ts": 12}),
    ("caches", '["f",null,null]', {"cache_func": "f"}),
    ("caches", '["f",null,9223372036854775807]', {"cache_func": "f", "invalidation_ts": 2**63 - 1}),
    ("caches", '["f",null,9223372036854775808]', {}),
    ("caches", '["f",null,1.5]', {}),
    ("caches", '["f",null,true]', {}),
    ("tag_account_data", '["@a","!r","{}"]', {"user_id": "@a", "room_id": "!r", "data": '"{}"'}),
    ("packages", '["a",1,true,0.5,"x",[{"b":1}]]', PACKAGE),
    ("packages", '["a",null,true,0.5,"x",null]', {**PACKAGE, "size": None, "at": None}),
    ("packages", '["a",1,"true",0.5,"x",null]', {}),
    ("notes", '[{"b":1,"a":null}]', {"value": '{"a":null,"b":1}'}),
    ("notes", '["x"]', {"value": '"x"'}),
]


def _expected(stream: str, values: dict[str, Any]) -> dict[str, Any]:
    return {name: values.get(name) for name, _ in columns(stream, DECLARED)}


def test_columns_have_the_names_and_types_of_the_declaration() -> None:
    """Types that SQL shares, and JSON text for all others."""
    assert columns("receipts") == (
        ("room_id", "string"),
        ("receipt_type", "string"),
        ("user_id", "string"),
        ("event_id", "string"),
        ("thread_id", "string"),
        ("data", "string"),
    )
    assert dict(columns("presence"))["last_active_ts"] == "bigint"
    assert dict(columns("public_rooms"))["visibility"] == "boolean"
    assert dict(columns("files"))["size"] == "bigint"
    assert next(iter(columns("events"))) == ("kind", "string")
    assert dict(columns("packages", DECLARED))["size"] == "bigint"


def test_no_column_hides_another() -> None:
    """Neither those of the source nor each other, whatever an operator declares."""
    assert set(COLUMNS) <= RESERVED
    for layout in catalog_layouts().values():
        names = [column.name for column in layout.columns]
        assert len({*names, *RESERVED}) == len(names) + len(RESERVED)
        assert len({(form.tag, len(form.items)) for form in layout.forms}) == len(layout.forms)

    layout = make_layout([("", [("key", "string"), ("key_", "long"), ("date", "json")])])

    assert [column.name for column in layout.columns] == ["key__", "key_", "date_"]


def test_an_unknown_stream_is_an_error() -> None:
    """It names the stream."""
    with pytest.raises(UnknownStream, match="packages"):
        layout_of("packages")


@pytest.mark.parametrize(("stream", "row", "values"), CASES)
def test_a_row_is_decoded_or_null(stream: str, row: str | None, values: dict[str, Any]) -> None:
    """Rows of old releases lack columns; no row is an error."""
    found = decode_rows(layout_of(stream, DECLARED), pa.array([row], pa.string()))

    assert {name: of.to_pylist()[0] for name, of in found.items()} == _expected(stream, values)


@pytest.mark.parametrize("stream", sorted({stream for stream, _, _ in CASES}))
def test_rows_of_all_forms_are_decoded_together(stream: str) -> None:
    """As in a batch that spans releases and is decoded in several parts; a bad row costs no other row."""
    of = [(row, _expected(stream, values)) for name, row, values in CASES if name == stream] * 100
    layout = layout_of(stream, DECLARED)

    found = pa.record_batch(decode_rows(layout, pa.array([row for row, _ in of], pa.string())))

    assert found.to_pylist() == [values for _, values in of]
    assert found.schema.types == [column.arrow_type for column in layout.columns]


def test_an_empty_batch_has_the_columns() -> None:
    """With their types."""
    found = decode_rows(layout_of("receipts"), pa.array([], pa.string()))

    assert [len(of) for of in found.values()] == [0] * 6


def test_half_of_a_surrogate_pair_is_no_error() -> None:
    """JSON can write it, UTF-8 cannot."""
    found = decode_rows(layout_of("push_rules"), pa.array(['["\\ud800"]'], pa.string()))

    assert found["user_id"].to_pylist() == ["?"]


def test_sql_finds_the_same(spark: "SparkSession") -> None:
    """In the frame of an archive, which has all streams, with its columns before those of the stream."""
    lines = [(number, stream, row) for number, (stream, row, _) in enumerate(CASES)]
    archive = spark.createDataFrame(lines, "serial bigint, stream string, row string")
    for name in sorted({stream for stream, _, _ in CASES}):
        frame = typed(archive, name, DECLARED)

        found = [row.asDict() for row in frame.orderBy("serial").collect()]

        assert found == [
            {"serial": number, "stream": name, "row": row, **_expected(name, values)}
            for number, (stream, row, values) in enumerate(CASES)
            if stream == name
        ]
        assert [(one.name, one.dataType.simpleString()) for one in frame.schema.fields[3:]] == list(
            columns(name, DECLARED)
        )


def test_sql_needs_no_python(spark: "SparkSession") -> None:
    """The plan has no Python node, and reads a row once."""
    archive = spark.createDataFrame([("receipts", "[]")], "stream string, row string")

    plan = typed(archive.coalesce(1), "events")._jdf.queryExecution().executedPlan().toString()

    assert "Python" not in plan.replace("ExistingRDD", "")
    assert plan.count("try_parse_json") + plan.count("parse_json") <= 2
