"""Routes of a stream's rows by token: pages of a writer's rows, and positions."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from synrepl.errors import ConfigError
from synrepl.ports.metrics import Metrics
from synrepl.replication.holdings import Holdings
from synrepl.replication.log_waiters import LogWaiters
from synrepl.storage import Log
from synrepl.streams import jsontext
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.holdings_check import check_held
from synrepl.transports.http.query import header, integer, token_as_synapse, word
from synrepl.transports.http.read_your_writes import read_your_writes
from synrepl.transports.http.row_pages import read_page
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.replication.status import StatusIngest

__all__ = ["RowRoutes"]

DEFAULT_ROWS: Final = 1_000
MAX_ROWS: Final = 10_000
CATCH_UP_ROWS: Final = 1_000

_synapse: Final = re.compile(r"Synapse/([0-9]{1,3}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)", re.ASCII)


def _worker_dialect(request: Any) -> Dialect | None:
    """The release of a Synapse worker, from its User-Agent (``Synapse/1.66.0``).

    A worker crashes on fields and kinds of rows that its release does not know.
    """
    page = _synapse.match(header(request, "user-agent") or "")
    if page is None:
        return None
    try:
        return Dialect.parse(page[1])
    except ConfigError:  # a release without this protocol
        return None


class RowRoutes:
    """Handles the requests. Each can wait until the log has reached a serial.

    Requests for streams and writers that this daemon does not hold are refused.
    """

    def __init__(
        self,
        *,
        log: Log,
        table: StreamTable,
        ingest: "StatusIngest | None",
        metrics: Metrics,
        waiters: LogWaiters,
        instance: str,
        dialect: Dialect | None,
        holdings: Callable[[], Holdings],
    ) -> None:
        self._log = log
        self._table = table
        self._ingest = ingest
        self._metrics = metrics
        self._waiters = waiters
        self._instance = instance
        self._dialect = dialect
        self._holdings = holdings

    async def page(self, request: Any, stream: str) -> bytes:
        """Return a page of one writer's rows, in the newest shape."""
        declared = self._table[stream]
        writer = word(request, "writer") or self._instance
        check_held(self._holdings(), [stream], [writer])
        limit = integer(request, "limit", DEFAULT_ROWS, lowest=1, highest=MAX_ROWS)
        after = integer(request, "from", 0)
        integer(request, "upto", 0)
        await read_your_writes(request, self._log, self._waiters)
        head = self._log.positions(stream).get(writer, 0)
        upto = integer(request, "upto", head, highest=head)
        page = await read_page(
            self._log, declared, writer, after=after, upto=upto, limit=limit, texts=declared.project_newest
        )
        return page.body(b"upto")

    async def allocated(self, request: Any, stream: str) -> bytes:
        """Return the positions of a stream; from memory, as followers request them often."""
        _ = self._table[stream]
        holdings = self._holdings()
        check_held(holdings, [stream])
        await read_your_writes(request, self._log, self._waiters)
        # Other processes allocate the ids of a table, and clients can wait for ids that this daemon has not
        # seen.
        is_partial = self._ingest is not None and self._ingest.is_followed(stream)
        writers = holdings.filter.writers
        positions = self._log.positions(stream)
        if writers is not None:
            # Positions of writers that are not held may be ahead of the log.
            is_partial = True
            positions = {writer: token for writer, token in positions.items() if writer in writers}
        return jsontext.dumps(
            {
                "stream": stream,
                "allocated": None if is_partial else self._log.linear_position(stream),
                "positions": positions,
            }
        )

    async def updates(self, request: Any, stream: str) -> bytes:
        """Return missed rows in Synapse's response format.

        Unlike Synapse, this ignores the transaction id: a repeated read is harmless.
        """
        declared = self._table.get(stream)
        dialect = self._dialect or _worker_dialect(request)
        if declared is None or (dialect and dialect.release not in declared.span):
            raise ApiError(400, "M_UNKNOWN", "Unknown stream")
        after = token_as_synapse(request, "from_token")
        upto = token_as_synapse(request, "upto_token")
        writer = self._requested_writer(request, stream)
        check_held(self._holdings(), [stream], [writer])
        await read_your_writes(request, self._log, self._waiters)
        texts: Callable[[bytes], list[bytes]] = declared.project_newest
        if dialect is not None:
            texts = lambda rows: declared.project_fact(rows, dialect)  # noqa: E731
        page = await read_page(
            self._log,
            declared,
            writer,
            after=after,
            upto=upto,
            limit=CATCH_UP_ROWS,
            texts=texts,
        )
        self._metrics.catch_up_requests.labels("in").inc()
        return page.body(b"upto_token")

    def _requested_writer(self, request: Any, stream: str) -> str:
        """Return the requested writer. Synapse's workers name it in Host, as in ``Host:
        event_persister1:80``.
        """
        named = word(request, "writer")
        if named is not None:
            return named
        host: str = request.getRequestHostname().decode("utf-8")
        return host if host in self._log.positions(stream) else self._instance
