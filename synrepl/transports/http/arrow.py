"""The changelog as an Arrow IPC stream, for bulk readers of columns.

pyarrow is an extra: it is imported where it is used.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from twisted.internet.threads import deferToThreadPool

from synrepl.http_api.routes import ARROW
from synrepl.replication.serving.encoder import LogEncoder
from synrepl.replication.serving.feed import Feed, PageStep
from synrepl.replication.serving.text_pages import read_text_page
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.digest import checksum
from synrepl.streams.facts import Fact
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.headers import header

PAGE_FACTS: Final = 5_000
"""The most facts in a record batch: typically about a megabyte."""

PAGE_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of rows in a record batch of several facts."""

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

RunInThread = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs a function in another thread than the reactor's (in tests: at once)."""


class ArrowEncoder(LogEncoder):
    """Encodes each page as a record batch. The columns are the fields of a line; rows are JSON text.

    The database writes the facts as text, and Arrow parses the text outside the reactor's thread. Only
    checksums, if the query has them, take a loop over the facts in Python.
    """

    CONTENT_TYPE = ARROW
    END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    """Marks the end: a message of length 0. A stream that ends without this marker was truncated."""

    def __init__(self, run: RunInThread, *, checked: bool) -> None:
        self._run = run
        self._checked = checked

    async def begin(self) -> bytes:
        """Encode the schema."""
        return await self._run(lambda: bytes(_schema(self._checked).serialize()))

    async def page(self, log: Log, feed: Feed, step: PageStep) -> bytes | None:
        """Encode the next facts as one record batch; nothing if no fact of these serials is selected."""
        text = await read_text_page(log, feed, step, facts=PAGE_FACTS, form="fields", size=PAGE_BYTES)
        return text and await self._run(lambda: _batch(text, self._checked))


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


def arrow_encoder(request: Any, query: ChangelogQuery, clock: Any) -> ArrowEncoder | None:
    """Return the Arrow format if the request accepts it, else None. Raises `ApiError` if it cannot be used.

    `clock` is the reactor, whose thread pool does the work. Test clocks have none: then it is done at once.
    """
    if ARROW not in (header(request, "accept") or ""):
        return None
    if query.follow or query.epoch_starts or query.receipts:
        why = "Arrow supports only closed ranges of facts; for follow, epoch_starts or receipts use NDJSON"
        raise ApiError("not_acceptable", why)
    if find_spec("pyarrow") is None:
        why = (
            "this daemon has no Arrow support, which pipelines need: where the daemon runs, install pyarrow"
            " (pip install 'synrepl[arrow]') and restart it; other clients may accept application/x-ndjson"
        )
        raise ApiError("not_acceptable", why)
    run: RunInThread = ImmediateThread().run
    if hasattr(clock, "getThreadPool"):
        run = partial(deferToThreadPool, clock, clock.getThreadPool())
    return ArrowEncoder(run, checked=query.checked)
