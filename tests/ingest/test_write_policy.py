"""What may be written here, and what not."""

from collections.abc import Collection
from typing import Any

import pytest

from synrepl.errors import ConfigError
from synrepl.ingest.write_policy import StreamWrite, WritePolicy, read_writes
from synrepl.streams.catalog import ToDevice
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable

TABLE = StreamTable.default()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, []),
        ("", []),
        ([], []),
        ("events", [("events", "")]),
        ("events, caches", [("events", ""), ("caches", "")]),
        (["events"], [("events", "")]),
        ([{"stream": "events", "writer": "w1"}], [("events", "w1")]),
        ([{"stream": "events"}, {"stream": "events", "writer": "w1"}], [("events", ""), ("events", "w1")]),
    ],
)
def test_settings_that_are_read(value: Any, expected: list[tuple[str, str]]) -> None:
    """As a flag or as a file has them."""
    assert expected == [(one.stream, one.writer) for one in read_writes(value)]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (3, "must be a list of streams"),
        ([3], "in one word each"),
        ("two words", "in one word each"),
        ([{"stream": "two words"}], "in one word each"),
        ([{"stream": "events", "writer": "a b"}], "in one word each"),
        ([{"writer": "w1"}], "tables with"),
        ([{"stream": "events", "instance": "w1"}], "tables with"),
        ("events,events", "twice"),
    ],
)
def test_settings_that_are_refused(value: Any, why: str) -> None:
    """In words, as an operator reads them."""
    with pytest.raises(ConfigError, match=why):
        read_writes(value)


class Standing:
    """A log of which only this is asked."""

    def __init__(self, **positions: dict[str, int]) -> None:
        self._positions = positions

    def positions(self, stream: str) -> dict[str, int]:
        return self._positions.get(stream, {})


def writing(*writes: tuple[str, str], tables: Collection[str] = ()) -> WritePolicy:
    """By a process called ``us``."""
    return WritePolicy(
        [StreamWrite(stream=stream, writer=writer) for stream, writer in writes],
        instance="us",
        table=TABLE,
        tables=tables,
    )


def test_an_unnamed_writer_is_this_process() -> None:
    """The usual case."""
    assert {("events", "us"), ("receipts", "w1")} == writing(("events", ""), ("receipts", "w1")).own


def test_all_is_what_synapse_knows_and_no_table_brings() -> None:
    """Streams of our own never go on its channel: one of them would cut every real process off."""
    own = {stream for stream, _ in writing(("all", ""), tables=["events"]).own}

    assert {"receipts", "caches", "typing"} < own
    assert not own & {"events", "groups", "tag_account_data", "public_rooms"}


def test_all_leaves_out_streams_of_our_own() -> None:
    """A POSITION of one would cut every real process off Redis."""
    mine: Stream[Any] = Stream("mine", ToDevice)
    table = StreamTable.default() | {mine}

    own = WritePolicy([StreamWrite(stream="all")], instance="us", table=table).own

    assert "mine" not in {stream for stream, _ in own}


def test_a_stream_that_synapse_does_not_know_is_refused() -> None:
    """A POSITION of it would cut every real process off Redis."""
    with pytest.raises(ConfigError, match="Synapse does not know the stream"):
        writing(("groups", ""))


@pytest.mark.parametrize(
    ("writes", "tables", "heard", "stream", "writer", "why"),
    [
        ([], [], {}, "groups", "us", ""),
        ([], ["events"], {}, "events", "us", ""),
        ([], [], {}, "events", "us", "name it in redis_writes"),
        ([("receipts", "")], [], {}, "events", "us", "name it in redis_writes"),
        ([("events", "")], [], {}, "events", "us", ""),
        ([("events", "")], [], {}, "events", "w1", "this one may write it as us only"),
        ([("events", "")], [], {"us": 5}, "events", "us", ""),
        ([("events", "")], [], {"us": 5, "w1": 0}, "events", "us", ""),
        ([("events", "")], [], {"us": 5, "w1": 3}, "events", "us", "w1 writes it too"),
        ([("events", ""), ("events", "w1")], [], {"us": 5, "w1": 3}, "events", "us", ""),
    ],
)
def test_streams_from_tables_and_other_writers_refuse_appends(
    writes: list[tuple[str, str]],
    tables: list[str],
    heard: dict[str, int],
    stream: str,
    writer: str,
    why: str,
) -> None:
    """The two others would give the same id to two facts, or say one order here and another there."""
    refusal = writing(*writes, tables=tables).refusal(Standing(events=heard), stream, writer)  # type: ignore[arg-type]

    assert (why in refusal) if why else refusal == ""
