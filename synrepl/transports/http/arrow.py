"""The changelog as an Arrow IPC stream: for whoever reads facts by the million into columns."""

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, Final

from twisted.internet.threads import deferToThreadPool

from synrepl.storage import ImmediateThread
from synrepl.streams.digest import checksum
from synrepl.transports.http.answers import Refused
from synrepl.transports.http.reading import Page
from synrepl.transports.http.wanted import Wanted

__all__ = ["ARROW", "ArrowForm", "arrow_form"]

ARROW: Final = b"application/vnd.apache.arrow.stream"

END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of a stream, as the format has it: a message of no length."""

_INTEGERS: Final = {"serial", "epoch", "prev_token", "token", "committed_at_ms"}
_COLUMNS: Final = (
    "serial",
    "epoch",
    "stream",
    "writer",
    "prev_token",
    "token",
    "rows",
    "committed_at_ms",
    "digest",
)

Run = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Does this elsewhere than in the reactor's thread."""


class ArrowForm:
    """A record batch a page, with the fields of the lines as columns; the rows are JSON text. `run` does the
    work."""

    content_type = ARROW

    def __init__(self, run: Run, *, checked: bool) -> None:
        self._run = run
        self._checked = checked

    async def begin(self) -> bytes:
        """The schema."""
        return await self._run(lambda: bytes(_schema(self._checked).serialize()))

    async def page(self, page: Page) -> bytes:
        """These facts as one batch."""
        return await self._run(lambda: _batch(page, self._checked))

    def end(self) -> bytes:
        """What tells a whole stream from one that was cut."""
        return END


def _schema(checked: bool) -> Any:
    import pyarrow as pa

    names = (*_COLUMNS, "checksum") if checked else _COLUMNS
    return pa.schema(
        [pa.field(name, pa.int64() if name in _INTEGERS else pa.string(), nullable=False) for name in names]
    )


def _batch(page: Page, checked: bool) -> bytes:
    import pyarrow as pa

    schema = _schema(checked)
    columns = [
        pa.array([getattr(fact, name) for fact in page.facts], type=schema.field(name).type)
        for name in _COLUMNS
    ]
    if checked:
        columns.append(pa.array(map(checksum, page.facts), type=pa.string()))
    return bytes(pa.record_batch(columns, schema=schema).serialize())


def arrow_form(request: Any, wanted: Wanted, clock: Any) -> ArrowForm | None:
    """What this request is answered in, if it asks for Arrow. Raises `Refused` where it cannot have it.

    `clock` is the reactor, whose threads do the work; in tests it has none, and it is done at once.
    """
    if ARROW.decode() not in (request.getHeader("accept") or ""):
        return None
    if wanted.follow or wanted.turns or wanted.receipts:
        why = "Arrow holds the facts of a closed range alone; for follow, turns and receipts ask for NDJSON"
        raise Refused(406, "not_acceptable", why)
    if find_spec("pyarrow") is None:
        why = "pyarrow is not installed here, so that there is no Arrow; application/x-ndjson can be had"
        raise Refused(406, "not_acceptable", why)
    return ArrowForm(_beside(clock), checked=wanted.checked)


def _beside(clock: Any) -> Run:
    if hasattr(clock, "getThreadPool"):
        return lambda work: deferToThreadPool(clock, clock.getThreadPool(), work)
    return ImmediateThread().run
