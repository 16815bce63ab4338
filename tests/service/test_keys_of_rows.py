"""Which facts of an ephemeral stream another one replaces: those of the same key."""

from types import SimpleNamespace
from typing import Any

import pytest

from synrepl.daemon.service import Daemon
from synrepl.streams.table import StreamTable


@pytest.mark.parametrize(
    ("stream", "rows", "is_one_key"),
    [
        ("typing", [b'["!r:hs",["@a:hs"]]', b'["!r:hs",[]]'], True),
        ("typing", [b'["!r:hs",[]]', b'["!s:hs",[]]'], False),
    ],
)
def test_rows_have_the_key_of_their_stream(stream: str, rows: list[bytes], is_one_key: bool) -> None:
    """The daemon keeps the newest fact of each key in memory."""
    daemon: Any = SimpleNamespace(table=StreamTable.default())
    one, other = (Daemon._key_of(daemon, stream, row) for row in rows)

    assert None not in (one, other)
    assert is_one_key is (one == other)


@pytest.mark.parametrize("stream", ["federation", "no such stream"])
def test_rows_without_a_key(stream: str) -> None:
    """Each stays."""
    daemon: Any = SimpleNamespace(table=StreamTable.default())

    assert Daemon._key_of(daemon, stream, b'["k",{}]') is None
