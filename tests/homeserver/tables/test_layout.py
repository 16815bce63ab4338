"""What the configuration of table-backed streams says, and what it is told when it makes no sense."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from synrepl.config import Settings
from synrepl.errors import ConfigError
from synrepl.homeserver.settings import homeserver_settings
from synrepl.homeserver.tables.layout import table_streams
from tests.service.test_ways_in import FORGED

RECEIPTS = {"stream": "receipts", "table": "receipts_linearized", "row": ["room_id"]}


def test_the_least_that_must_be_said() -> None:
    """The rest has the names that homeservers use."""
    (one,) = table_streams([RECEIPTS], default_writer="master")

    table = one.tables[0]
    assert ("receipts", "receipts", "", ()) == (one.stream, one.ids.name, one.ids.sequence, one.ids.writers)
    assert ("receipts_linearized", "stream_id", "instance_name") == (
        table.ids.name, table.ids.id_column, table.ids.writer_column,
    )  # fmt: skip
    assert ("master", False) == (one.default_writer, one.from_first)


def test_a_stream_can_be_the_union_of_several_tables() -> None:
    """As account data is, whose kinds are parts of the rows."""
    (one,) = table_streams(
        [
            {
                "stream": "account_data",
                "tables": [
                    {"table": "room_account_data", "row": ["user_id", "room_id", "account_data_type"]},
                    {"table": "account_data", "row": ["user_id", None, "account_data_type"]},
                    {"table": "room_tags_revisions", "row": ["user_id", "room_id", {"value": "m.tag"}]},
                ],
            }
        ],
        default_writer="master",
    )

    assert ["room_account_data", "account_data", "room_tags_revisions"] == [
        table.name for table in one.ids.tables
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "must be a list of streams"),
        ([3], "needs the name of a stream"),
        ([{"stream": "receipts"}], "(stream receipts): each table needs `table: NAME`"),
        ([RECEIPTS | {"colour": 1}], "(stream receipts): there is no setting colour"),
        (
            [RECEIPTS | {"table": "a; DROP TABLE b"}],
            "(stream receipts): 'a; DROP TABLE b' is not the name of a table",
        ),
        ([RECEIPTS | {"row": []}], "(stream receipts): `row` must be a list of columns"),
        (
            [RECEIPTS | {"row": ["room id"]}],
            "(stream receipts): 'room id' is not the name of a table, column or sequence",
        ),
        ([RECEIPTS | {"row": [{"sql": "x"}]}], "(stream receipts): `row` may have columns"),
        ([RECEIPTS | {"row": [7]}], "(stream receipts): `row` may have columns"),
        ([RECEIPTS | {"writers": "w1"}], "`writers` must be a list of instance names"),
        ([RECEIPTS | {"start": "now"}], "`start` must be latest or earliest"),
        ([RECEIPTS | {"negative": 1}], "`negative` must be true or false"),
        ([RECEIPTS | {"sequence": "a b"}], "(stream receipts): `sequence`: 'a b' is not the name"),
        ([RECEIPTS, RECEIPTS], "has the stream receipts more than once"),
    ],
)
def test_invalid_layouts_are_refused(given: Any, said: str) -> None:
    """With the stream it is about, before anything is opened."""
    with pytest.raises(ConfigError) as caught:
        table_streams(given, default_writer="master")

    assert said in str(caught.value)


def test_a_daemon_takes_them_from_its_file(tmp_path: Path) -> None:
    """Rows of tables that name no writer are this instance's."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"instance_name": "w1", "table_streams": [RECEIPTS]}))

    built = Settings.build({}, file=path)

    assert ["w1"] == [one.default_writer for one in homeserver_settings(built).table_streams]


def test_no_table_is_read_for_streams_of_the_daemon() -> None:
    """The mistake is told at the start, and not by a stream that stays empty."""
    for stream in (*FORGED, "files"):
        with pytest.raises(ConfigError, match=f"{stream}.*not from tables"):
            table_streams([{"stream": stream, "table": "t", "row": ["a"]}], default_writer="master")
