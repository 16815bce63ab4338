"""The changelog as an Arrow IPC stream: for whoever reads facts by the million into columns."""

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, Final

from twisted.internet.threads import deferToThreadPool

from synrepl.storage import ImmediateThread
from synrepl.streams.digest import checksum
from synrepl.streams.facts import Fact
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.changelog_cursor import ChangelogCursor
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.query import header

__all__ = ["ARROW", "ArrowForm", "arrow_form"]

ARROW: Final = b"application/vnd.apache.arrow.stream"

END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of a stream, as the format has it: a message of no length."""

PAGE_FACTS: Final = 5_000
"""Facts of a record batch: a megabyte or so."""

_COLUMNS: Final = {
    "serial": "int64",
    "epoch": "int64",
    "stream": "string",
    "writer": "string",
    "prev_token": "int64",
    "token": "int64",
    "rows": "string",
    "committed_at_ms": "int64",
    "digest": "string",
}

Run = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Does this elsewhere than in the reactor's thread."""


class ArrowForm:
    """A record batch a page, with the fields of the lines as columns; the rows are JSON text.

    The database writes the facts as text and Arrow reads that, both in C and beside the reactor: a loop over
    facts in Python costs twice as much, and everybody else waits for it.
    """

    content_type = ARROW

    def __init__(self, run: Run, *, checked: bool) -> None:
        self._run = run
        self._checked = checked

    async def begin(self) -> bytes:
        """The schema."""
        return await self._run(lambda: bytes(_schema(self._checked).serialize()))

    async def page(self, reading: ChangelogCursor, upto: int) -> bytes:
        """The next facts as one batch."""
        limit = PAGE_FACTS if reading.left is None else min(PAGE_FACTS, reading.left)
        text = await reading.text(upto, limit)
        return await self._run(lambda: _batch(text, self._checked)) if text else b""

    def end(self) -> bytes:
        """What tells a whole stream from one that was cut."""
        return END


def _schema(checked: bool) -> Any:
    import pyarrow as pa

    names = {**_COLUMNS, "checksum": "string"} if checked else _COLUMNS
    return pa.schema([pa.field(name, getattr(pa, kind)(), nullable=False) for name, kind in names.items()])


def _batch(text: bytes, checked: bool) -> bytes:
    import pyarrow as pa
    from pyarrow import csv

    columns = csv.read_csv(
        pa.py_buffer(text),
        read_options=csv.ReadOptions(
            column_names=list(_COLUMNS), use_threads=False, block_size=len(text) + 1
        ),
        parse_options=csv.ParseOptions(delimiter="\x1f", quote_char=False),
        convert_options=csv.ConvertOptions(
            column_types={name: getattr(pa, kind)() for name, kind in _COLUMNS.items()},
            check_utf8=False,
            strings_can_be_null=False,
        ),
    )
    arrays = [column.combine_chunks() for column in columns.columns]
    if checked:
        values = [array.to_pylist() for array in arrays]
        rows = list(_COLUMNS).index("rows")
        values[rows] = [text.encode() for text in values[rows]]
        facts = (Fact(*fields) for fields in zip(*values, strict=True))
        arrays.append(pa.array(map(checksum, facts), type=pa.string()))
    return bytes(pa.record_batch(arrays, schema=_schema(checked)).serialize())


def arrow_form(request: Any, wanted: ChangelogQuery, clock: Any) -> ArrowForm | None:
    """What this request is answered in, if it asks for Arrow. Raises `ApiError` where it cannot have it.

    `clock` is the reactor, whose threads do the work; in tests it has none, and it is done at once.
    """
    if ARROW.decode() not in (header(request, "accept") or ""):
        return None
    if wanted.follow or wanted.epoch_starts or wanted.receipts:
        why = "Arrow holds the facts of a closed range alone; for follow, turns and receipts ask for NDJSON"
        raise ApiError(406, "not_acceptable", why)
    if find_spec("pyarrow") is None:
        why = "pyarrow is not installed here, so that there is no Arrow; application/x-ndjson can be had"
        raise ApiError(406, "not_acceptable", why)
    return ArrowForm(_beside(clock), checked=wanted.checked)


def _beside(clock: Any) -> Run:
    if hasattr(clock, "getThreadPool"):
        return lambda work: deferToThreadPool(clock, clock.getThreadPool(), work)
    return ImmediateThread().run
