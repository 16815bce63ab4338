"""What is asked where, and how it is answered.

Klein imports the reactor, so only `server.make_site` imports this module, and only when it is called.
"""

import re
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import msgspec
from klein import Klein
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from twisted.internet.defer import CancelledError
from twisted.logger import Logger
from twisted.python.failure import Failure
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from synrepl.errors import ConfigError
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.streams import jsontext
from synrepl.streams.table import StreamTable
from synrepl.transports.http.answers import INTERNAL, Refused, as_refused, ours, synapse
from synrepl.transports.http.authorization import Guard
from synrepl.transports.http.changelog import Changelog
from synrepl.transports.http.gauges import refresh
from synrepl.transports.http.pages import read_page
from synrepl.transports.http.parameters import integer, seconds, text, token_as_synapse, word
from synrepl.transports.http.posting import read_body, read_facts
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.replication.status import DescribedSources, DescribedTables

__all__ = ["Api"]

DEFAULT_ROWS: Final = 1_000
MAX_ROWS: Final = 10_000
CATCH_UP_ROWS: Final = 1_000
MAX_WAIT_SECONDS: Final = 300.0

JSON: Final = b"application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
CATCH_UP: Final = "/_synapse/replication/get_repl_stream_updates/"

_synapse: Final = re.compile(r"Synapse/([0-9]{1,3}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)", re.ASCII)


def _worker_dialect(request: Any) -> Dialect | None:
    """The release of a real worker, which its User-Agent names (``Synapse/1.66.0``): it dies of a field or a
    kind of row that it does not know."""
    found = _synapse.match(request.getHeader("user-agent") or "")
    if found is None:
        return None
    try:
        return Dialect.parse(found[1])
    except ConfigError:  # a release before the wire: nothing we could cut rows to
        return None


class Api:
    """Answers requests. Whatever goes wrong, the client gets JSON, and never sees our code."""

    app = Klein()
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = True
    app.url_map.redirect_defaults = False
    _logger = Logger()

    def __init__(
        self,
        *,
        log: Log,
        publisher: Publisher,
        table: StreamTable,
        tables: "DescribedTables | None",
        sources: "DescribedSources | None",
        metrics: Metrics,
        clock: IClock,
        instance: str,
        server_name: str,
        guard: Guard,
        dialect: Dialect | None,
        started_at: float,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._table = table
        self._tables = tables
        self._sources = sources
        self._metrics = metrics
        self._clock = clock
        self._instance = instance
        self._server_name = server_name
        self._guard = guard
        self._dialect = dialect
        self._started_at = started_at
        self.changelog = Changelog(log, clock)

    # -- facts in ------------------------------------------------------------------------------------------

    @app.route("/v1/streams/<stream>/facts", methods=["POST"])
    async def post_facts(self, request: Any, stream: str) -> bytes | None:
        """Facts become durable, then the answer says what they became."""

        async def answer() -> bytes:
            declared = self._table[stream]
            posted = read_body(request.content.read())
            facts = await read_facts(declared, posted, self._clock)
            appended = await self._log.append(
                stream,
                posted.writer if isinstance(posted.writer, str) else self._instance,
                facts,
                key=posted.idempotency_key if isinstance(posted.idempotency_key, str) else None,
            )
            return msgspec.json.encode(appended)

        return await self._answer(request, answer)

    # -- rows out ------------------------------------------------------------------------------------------

    @app.route("/v1/streams/<stream>/rows", methods=["GET"])
    async def get_rows(self, request: Any, stream: str) -> bytes | None:
        """A page of one writer's rows, in the newest shape."""

        async def answer() -> bytes:
            declared = self._table[stream]
            writer = word(request, "writer") or self._instance
            limit = integer(request, "limit", DEFAULT_ROWS, lowest=1, highest=MAX_ROWS)
            after = integer(request, "from", 0)
            head = self._log.positions(stream).get(writer, 0)
            upto = integer(request, "upto", head, highest=head)
            found = await read_page(
                self._log, declared, writer, after=after, upto=upto, limit=limit, texts=jsontext.split
            )
            return found.body(b"upto")

        return await self._answer(request, answer)

    @app.route("/v1/streams/<stream>/allocated", methods=["GET"])
    async def get_allocated(self, request: Any, stream: str) -> bytes | None:
        """How far there is anything to wait for: from memory, as followers ask it often."""

        async def answer() -> bytes:
            _ = self._table[stream]
            # Ids of a table are given out elsewhere, and may be waited for before we have seen them.
            is_elsewhere = self._tables is not None and self._tables.is_followed(stream)
            return jsontext.dumps(
                {
                    "stream": stream,
                    "allocated": None if is_elsewhere else self._log.linear_position(stream),
                    "positions": self._log.positions(stream),
                }
            )

        return await self._answer(request, answer)

    @app.route(CATCH_UP + "<stream>/<txn_id>", methods=["GET"])
    async def get_updates(self, request: Any, stream: str, txn_id: str) -> bytes | None:
        """What a follower missed, as Synapse answers it (facts: streams of current Synapse, 5).

        Unlike there, answers are not remembered by transaction id: reading again does no harm.
        """

        async def answer() -> bytes:
            declared = self._table.get(stream)
            dialect = self._dialect or _worker_dialect(request)
            if declared is None or (dialect and dialect.release not in declared.span):
                raise Refused(400, "M_UNKNOWN", "Unknown stream")
            after = token_as_synapse(request, "from_token")
            upto = token_as_synapse(request, "upto_token")
            texts: Callable[[bytes], list[bytes]] = jsontext.split
            if dialect is not None:
                texts = lambda rows: declared.cut_fact(rows, dialect)  # noqa: E731
            found = await read_page(
                self._log,
                declared,
                self._asked_writer(request, stream),
                after=after,
                upto=upto,
                limit=CATCH_UP_ROWS,
                texts=texts,
            )
            self._metrics.catch_up_requests.labels("in").inc()
            return found.body(b"upto_token")

        return await self._answer(request, answer)

    def _asked_writer(self, request: Any, stream: str) -> str:
        """Whose rows are wanted: real clients name it in Host, as in ``Host: event_persister1:80``."""
        named = word(request, "writer")
        if named is not None:
            return named
        host: str = request.getRequestHostname().decode("utf-8")
        return host if host in self._log.positions(stream) else self._instance

    @app.route("/v1/changelog", methods=["GET"])
    async def get_changelog(self, request: Any) -> bytes | None:
        """The log from a serial on, as lines of JSON."""

        async def answer() -> None:
            if ARROW in (request.getHeader("accept") or ""):
                raise Refused(406, "not_acceptable", "only application/x-ndjson can be had here")
            names = text(request, "streams")
            streams = None if names is None else frozenset(names.split(","))
            for name in sorted(streams or ()):
                _ = self._table[name]
            limit = integer(request, "limit", -1, lowest=1)
            await self.changelog.serve(
                request,
                since=integer(request, "since", 0),
                limit=None if limit < 0 else limit,
                wait=seconds(request, "wait", highest=MAX_WAIT_SECONDS),
                streams=streams,
            )

        return await self._answer(request, answer)

    # -- what is known about this daemon -------------------------------------------------------------------

    @app.route("/v1/status", methods=["GET"])
    async def get_status(self, request: Any) -> bytes | None:
        """Where it stands, for programs."""

        async def answer() -> bytes:
            return jsontext.dumps(self._status()) + b"\n"

        return await self._answer(request, answer)

    @app.route("/status", methods=["GET"])
    async def get_status_page(self, request: Any) -> bytes | None:
        """Where it stands, for people."""

        async def answer() -> bytes:
            # Here, so that a daemon that nobody looks at need not have it in memory.
            from synrepl.transports.http.status_page import page

            request.setHeader(b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")
            return page(self._status())

        return await self._answer(request, answer, content_type=b"text/html; charset=utf-8")

    @app.route("/livez", methods=["GET"])
    async def get_livez(self, request: Any) -> bytes | None:
        """It runs: an answer is all there is to it."""

        async def answer() -> bytes:
            return b'{"alive":true}'

        return await self._answer(request, answer, is_open=True)

    @app.route("/readyz", methods=["GET"])
    async def get_readyz(self, request: Any) -> bytes | None:
        """Whether it can do its work, and if not, why."""

        async def answer() -> bytes:
            is_healthy, why = self._log.healthy
            reasons = [] if is_healthy else [f"log: {why}"]
            if self._tables is not None:
                reasons += [trouble for trouble, _ in self._tables.troubles()]
            if self._sources is not None:
                reasons += [trouble for trouble, _ in self._sources.reasons()]
            if not reasons:
                return b'{"ready":true}'
            request.setResponseCode(503)
            return jsontext.dumps({"ready": False, "reasons": reasons})

        return await self._answer(request, answer, is_open=True)

    @app.route("/metrics", methods=["GET"])
    async def get_metrics(self, request: Any) -> bytes | None:
        """Every number, for Prometheus."""

        async def answer() -> bytes:
            refresh(self._metrics, self._log, self._publisher, self._sources)
            return generate_latest(self._metrics.registry)

        return await self._answer(request, answer, is_open=True, content_type=CONTENT_TYPE_LATEST.encode())

    def _status(self) -> dict[str, Any]:
        from synrepl.replication.status import describe  # here for the same reason

        return describe(
            log=self._log,
            publisher=self._publisher,
            table=self._table,
            tables=self._tables,
            sources=self._sources,
            clock=self._clock,
            instance=self._instance,
            server_name=self._server_name,
            started_at=self._started_at,
            version=_version(),
        )

    # -- answering -----------------------------------------------------------------------------------------

    @app.handle_errors(HTTPException)
    def _no_such_place(self, request: Any, failure: Failure) -> bytes:
        """The URL or the method is not one of ours."""
        is_synapse = request.path.startswith(b"/_synapse/")
        error = failure.value
        if isinstance(error, MethodNotAllowed):
            allowed = ", ".join(sorted(error.valid_methods or ())).encode()
            method = request.method.decode("ascii")
            code, message = (
                ("M_UNRECOGNIZED", "Unrecognized request")
                if is_synapse
                else (
                    "method_not_allowed",
                    f"{method} is not done here; there is {allowed.decode()}",
                )
            )
            return self._refuse(request, Refused(405, code, message, allow=allowed))
        if is_synapse:
            return self._refuse(request, Refused(404, "M_UNRECOGNIZED", "Unrecognized request"))
        return self._refuse(request, Refused(404, "not_found", "there is nothing here"))

    async def _answer(
        self,
        request: Any,
        answer: Callable[[], Awaitable[bytes | None]],
        *,
        content_type: bytes = JSON,
        is_open: bool = False,
    ) -> bytes | None:
        """What `answer` gives, or why not; None if it wrote by itself. What `is_open` needs no secret."""
        try:
            if not is_open and not self._guard.allows(request.requestHeaders):
                raise self._unauthorized(request)
            body = await answer()
        except CancelledError:
            raise
        except Exception as error:
            refused = as_refused(error)
            if refused is None:
                self._logger.failure("{method} {path} failed", method=request.method, path=request.path)
                refused = INTERNAL
            return self._refuse(request, refused)
        if body is not None:
            request.setHeader(b"content-type", content_type)
            request.setHeader(b"content-length", b"%d" % len(body))
        return body

    @staticmethod
    def _unauthorized(request: Any) -> Refused:
        if request.path.startswith(b"/_synapse/"):
            return Refused(500, "M_UNKNOWN", "Internal server error")
        why = "the secret is wanted, once, as Authorization: Bearer"
        return Refused(401, "unauthorized", why, www_authenticate=b"Bearer")

    @staticmethod
    def _refuse(request: Any, refused: Refused) -> bytes:
        request.setResponseCode(refused.status)
        for name, value in refused.headers.items():
            request.setHeader(name, value)
        body = synapse(refused) if request.path.startswith(b"/_synapse/") else ours(refused)
        request.setHeader(b"content-type", JSON)
        request.setHeader(b"content-length", b"%d" % len(body))
        return body


def _version() -> str:
    try:
        return version("synrepl")
    except PackageNotFoundError:
        return "unknown"
