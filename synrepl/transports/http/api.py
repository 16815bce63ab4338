"""The HTTP API: its routes, access checks and error responses.

Klein imports the reactor, so only `server.make_site` imports this module, when it is called.
"""

from collections.abc import Awaitable, Callable
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from klein import Klein
from msgspec import UNSET
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from twisted.internet.defer import CancelledError
from twisted.logger import Logger
from twisted.python.failure import Failure
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from synrepl.ports.access import Access, Right
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.replication.holdings import Holdings
from synrepl.replication.log_waiters import LogWaiters
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.streams import jsontext
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api_error import INTERNAL, ApiError, api_body, as_api_error, synapse_body
from synrepl.transports.http.append_body import check_writer, read_body, read_facts
from synrepl.transports.http.authorization import AccessCheck, check_right, check_streams
from synrepl.transports.http.content_digest import HEADER, content_digest, is_digest_wanted, matches_digest
from synrepl.transports.http.holdings_check import check_held, check_readable, filtered_error, set_held_header
from synrepl.transports.http.metrics_collector import collect
from synrepl.transports.http.origin_check import check_content_type
from synrepl.transports.http.query import headers, integers, reader_of
from synrepl.transports.http.read_your_writes import read_your_writes
from synrepl.transports.http.row_routes import RowRoutes
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.files import Files
    from synrepl.replication.relay import ReplicaRegistry
    from synrepl.replication.roles import RoleManager
    from synrepl.replication.status import StatusIngest, StatusReplication
    from synrepl.transports.http.admin_routes import AdminRoutes
    from synrepl.transports.http.changelog import Changelog
    from synrepl.transports.http.changelog_query import ChangelogQuery
    from synrepl.transports.http.command_routes import CommandRoutes
    from synrepl.transports.http.file_routes import FileRoutes
    from synrepl.transports.http.replica_routes import ReplicaRoutes

__all__ = ["Api", "IWriteForwarder"]

JSON: Final = b"application/json"
MAX_SERIALS: Final = 1_000
UNAUTHORIZED: Final = 401
FILES: Final = "files"
NO_SUCH_FILE: Final = "no_such_file"
PRESENCE: Final = "presence"
NDJSON: Final = b"application/x-ndjson"
NO_REPLICATION: Final = ApiError(404, "not_found", "this daemon serves no replicas")
CATCH_UP: Final = "/_synapse/replication/get_repl_stream_updates/"


class IWriteForwarder(Protocol):
    """Takes facts that are posted to a replica; see `write_forwarder.WriteForwarder`."""

    @property
    def is_active(self) -> bool:
        """Whether this daemon forwards facts to a primary."""

    async def answer(self, request: Any, stream: Stream[Any], body: bytes, waiters: LogWaiters) -> bytes:
        """Return the primary's response. Raises `ApiError`."""


class Api:
    """Handles the requests of all routes.

    Every failure becomes a JSON response without internal details.
    """

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
        ingest: "StatusIngest | None",
        replication: "StatusReplication | None",
        metrics: Metrics,
        clock: IClock,
        instance: str,
        server_name: str,
        guard: AccessCheck,
        dialect: Dialect | None,
        started_at: float,
        files: "Files | None" = None,
        write_forwarder: "IWriteForwarder | None" = None,
        roles: "RoleManager | None" = None,
        relays: "ReplicaRegistry | None" = None,
        refuses_stale: bool = False,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._table = table
        self._ingest = ingest
        self._replication = replication
        self._metrics = metrics
        self._clock = clock
        self._instance = instance
        self._server_name = server_name
        self._guard = guard
        self._started_at = started_at
        self._write_forwarder = write_forwarder
        self._waiters = publisher.waiters
        self._rows = RowRoutes(
            log=log,
            table=table,
            ingest=ingest,
            metrics=metrics,
            waiters=self._waiters,
            instance=instance,
            dialect=dialect,
            holdings=lambda: self._holdings,
        )
        self._file_store = files
        self._roles = roles
        self._registry = relays
        self._refuses_stale = refuses_stale

    # -- facts in ------------------------------------------------------------------------------------------

    @app.route("/v1/streams/<stream>/facts", methods=["POST"])
    async def post_facts(self, request: Any, stream: str) -> bytes | None:
        """Make facts of one stream durable; respond with their tokens and serials."""

        async def answer() -> bytes:
            declared = self._table[stream]
            body = request.content.read()
            if self._write_forwarder is not None and self._write_forwarder.is_active:
                return await self._write_forwarder.answer(request, declared, body, self._waiters)
            posted = read_body(body)
            if posted.writer is not UNSET:
                check_writer(posted, stream, self._log.positions(stream), self._instance)
            facts = await read_facts(declared, posted, self._clock)
            appended = await self._log.append(
                stream,
                posted.writer if isinstance(posted.writer, str) else self._instance,
                facts,
                key=posted.idempotency_key if isinstance(posted.idempotency_key, str) else None,
            )
            return msgspec.json.encode(appended)

        return await self._answer(request, answer, right=Right.WRITE, stream=stream)

    @app.route("/v1/facts", methods=["POST"])
    async def post_all(self, request: Any) -> bytes | None:
        """Make facts of several streams durable together."""

        async def answer() -> bytes:
            from synrepl.transports.http.batch_append import append_all

            if self._write_forwarder is not None and self._write_forwarder.is_active:
                if self._roles is not None and (stopped := self._roles.forwarding_refusal("")) is not None:
                    raise stopped
                why = "this daemon is a replica: post the batch to the primary, or post each stream by itself"
                raise ApiError(409, "not_primary", why)
            return await append_all(
                request.content.read(),
                log=self._log,
                table=self._table,
                files=self._file_store,
                clock=self._clock,
                instance=self._instance,
                access=request.access,
            )

        return await self._answer(request, answer, right=Right.WRITE)

    # -- rows out ------------------------------------------------------------------------------------------

    @app.route("/v1/streams/<stream>/rows", methods=["GET"])
    async def get_rows(self, request: Any, stream: str) -> bytes | None:
        """Return a page of one writer's rows, in the newest shape."""
        return await self._answer(
            request, lambda: self._read_fresh(lambda: self._rows.page(request, stream)), stream=stream
        )

    @app.route("/v1/streams/<stream>/allocated", methods=["GET"])
    async def get_allocated(self, request: Any, stream: str) -> bytes | None:
        """Return the positions of a stream up to which a client can wait."""
        return await self._answer(
            request, lambda: self._read_fresh(lambda: self._rows.allocated(request, stream)), stream=stream
        )

    @app.route(CATCH_UP + "<stream>/<txn_id>", methods=["GET"])
    async def get_updates(self, request: Any, stream: str, txn_id: str) -> bytes | None:
        """Return the rows that a follower missed, in Synapse's response format."""
        return await self._answer(
            request, lambda: self._read_fresh(lambda: self._rows.updates(request, stream)), stream=stream
        )

    async def _read_fresh(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Call `read`, unless this daemon has no complete copy, or `refuse_stale_reads` applies."""
        self._check_fresh()
        return await read()

    def _check_fresh(self) -> None:
        check_readable(self._holdings)
        if (
            self._refuses_stale
            and self._replication is not None
            and (reasons := self._replication.not_ready_reasons())
        ):
            raise ApiError(503, "not_ready", reasons[0][0], retry_after=b"5")

    # -- the log out ---------------------------------------------------------------------------------------

    @app.route("/v1/changelog", methods=["GET"])
    async def get_changelog(self, request: Any) -> bytes | None:
        """Serve the log from a serial on."""

        async def answer() -> None:
            from synrepl.transports.http.arrow import arrow_form
            from synrepl.transports.http.changelog_query import read_query

            query = read_query(request, self._table, self._holdings)
            form = arrow_form(request, query, self._clock)
            await self._prepare_read(request, query)
            set_held_header(request, self._holdings)
            await self.changelog.serve(request, query, form)

        return await self._answer(request, answer)

    @app.route("/v1/extent", methods=["GET"])
    async def get_extent(self, request: Any) -> bytes | None:
        """Return the number and size of facts from a serial on."""

        async def answer() -> bytes:
            from synrepl.transports.http.changelog_query import read_query
            from synrepl.transports.http.log_extent import measure_extent

            query = read_query(request, self._table, self._holdings)
            await self._prepare_read(request, query)
            await self.changelog.check(query)
            set_held_header(request, self._holdings)
            return jsontext.dumps(await measure_extent(self._log, query))

        return await self._answer(request, answer)

    async def _prepare_read(self, request: Any, query: "ChangelogQuery") -> None:
        """Wait for `min_serial`; register a named reader's lease, which retains the facts it has not read."""
        self._check_fresh()
        await read_your_writes(request, self._log, self._waiters)
        reader = reader_of(request)
        if reader is not None and self._registry is not None:
            await self.changelog.check(query)
            self._replicas.reads(reader, query.since, query.wait)

    @app.route("/v1/digests", methods=["GET"])
    async def get_digests(self, request: Any) -> bytes | None:
        """Return digests at serials: a client finds a fork by bisection."""

        async def answer() -> bytes:
            from synrepl.transports.http.fork_check import read_digests

            return jsontext.dumps(
                await read_digests(self._log, integers(request, "serials", max_count=MAX_SERIALS))
            )

        return await self._answer(request, answer)

    # -- files ---------------------------------------------------------------------------------------------

    @app.route("/v1/files/sha256/<sha256>", methods=["PUT"])
    async def put_file(self, request: Any, sha256: str) -> bytes | None:
        """Store a file under its checksum."""
        return await self._answer(
            request, lambda: self._files.put(request, sha256), right=Right.WRITE, stream=FILES
        )

    @app.route("/v1/files/sha256/<sha256>", methods=["GET"])
    async def get_file(self, request: Any, sha256: str) -> bytes | None:
        """Return a file by its checksum."""

        async def answer() -> bytes | None:
            check_readable(self._holdings)
            check_held(self._holdings, [FILES])
            try:
                return await self._files.get(request, sha256)
            except ApiError as refused:
                if refused.code == NO_SUCH_FILE and self._holdings.filter.writers is not None:
                    # This daemon holds only some writers: another writer may have named the file.
                    why = f"{refused.message}; {self._holdings.describe()}"
                    raise filtered_error(self._holdings, why) from refused
                raise

        return await self._answer(request, answer, stream=FILES)

    # -- replication -----------------------------------------------------------------------------------------

    @app.route("/v1/replication", methods=["GET"])
    async def get_replication(self, request: Any) -> bytes | None:
        """Return this log's history, oldest position and head."""
        return await self._answer(request, lambda: self._replicas.about(request))

    @app.route("/v1/replicas/<uuid>", methods=["POST"])
    async def post_replica(self, request: Any, uuid: str) -> bytes | None:
        """Admit a replica over HTTP."""
        return await self._answer(
            request, lambda: self._replicas.subscribe(request, uuid), right=Right.REPLICATE
        )

    @app.route("/v1/replicas/<uuid>/join", methods=["POST"])
    async def post_join(self, request: Any, uuid: str) -> bytes | None:
        """Send a snapshot to a replica."""
        return await self._answer(request, lambda: self._replicas.join(request, uuid), right=Right.REPLICATE)

    @app.route("/v1/replicas/<uuid>/ack", methods=["POST"])
    async def post_ack(self, request: Any, uuid: str) -> bytes | None:
        """Record a replica's position."""
        return await self._answer(
            request, lambda: self._replicas.acknowledge(request, uuid), right=Right.REPLICATE
        )

    @app.route("/v1/commands", methods=["POST"])
    async def post_commands(self, request: Any) -> bytes | None:
        """Take commands that a replica forwards from its followers."""
        return await self._answer(request, lambda: self._commands.take(request), right=Right.REPLICATE)

    @app.route("/v1/commands", methods=["GET"])
    async def get_commands(self, request: Any) -> bytes | None:
        """Return followers' commands for the homeserver."""
        return await self._answer(
            request, lambda: self._commands.read(request), right=Right.ADMINISTER, content_type=NDJSON
        )

    @app.route("/v1/commands/ack", methods=["POST"])
    async def post_commands_ack(self, request: Any) -> bytes | None:
        """Acknowledge commands that the homeserver has processed."""
        return await self._answer(
            request, lambda: self._commands.acknowledge(request), right=Right.ADMINISTER
        )

    @app.route("/v1/syncing", methods=["GET"])
    async def get_syncing(self, request: Any) -> bytes | None:
        """Return the users who are syncing."""
        return await self._answer(request, lambda: self._commands.syncing(request), stream=PRESENCE)

    @app.route("/v1/leases", methods=["GET"])
    async def get_leases(self, request: Any) -> bytes | None:
        """List the leases, which retain parts of the log."""
        return await self._answer(request, lambda: self._admin.list_leases(request))

    @app.route("/v1/leases", methods=["POST"])
    async def post_lease(self, request: Any) -> bytes | None:
        """Add a lease for a replica that will come."""
        return await self._answer(request, lambda: self._admin.add_lease(request), right=Right.ADMINISTER)

    @app.route("/v1/leases/<name>", methods=["DELETE"])
    async def delete_lease(self, request: Any, name: str) -> bytes | None:
        """Drop a lease."""
        return await self._answer(
            request, lambda: self._admin.drop_lease(request, name), right=Right.ADMINISTER
        )

    @app.route("/v1/promote", methods=["POST"])
    async def post_promote(self, request: Any) -> bytes | None:
        """Promote this replica to primary."""
        return await self._answer(request, lambda: self._admin.promote(request), right=Right.ADMINISTER)

    @app.route("/v1/resync", methods=["POST"])
    async def post_resync(self, request: Any) -> bytes | None:
        """Discard facts that only this copy has, and join again."""
        return await self._answer(request, lambda: self._admin.resync(request), right=Right.ADMINISTER)

    @app.route("/v1/handover", methods=["POST"])
    async def post_handover(self, request: Any) -> bytes | None:
        """Hand over to another daemon, which is being promoted."""
        return await self._answer(request, lambda: self._admin.hand_over(request), right=Right.ADMINISTER)

    @app.route("/v1/claim", methods=["POST"])
    async def post_claim(self, request: Any) -> bytes | None:
        """Handle another daemon's claim to be primary."""
        return await self._answer(request, lambda: self._admin.claim(request), right=Right.ADMINISTER)

    @property
    def _holdings(self) -> Holdings:
        return self._publisher.holdings

    # -- created on first use, to save memory ---------------------------------------------------------------

    @cached_property
    def changelog(self) -> "Changelog":
        """Serves the log."""
        from synrepl.transports.http.changelog import Changelog

        return Changelog(self._log, self._publisher, self._clock, self._waiters)

    @cached_property
    def _commands(self) -> "CommandRoutes":
        from synrepl.transports.http.command_routes import CommandRoutes

        return CommandRoutes(self._publisher)

    @cached_property
    def _files(self) -> "FileRoutes":
        from synrepl.transports.http.file_routes import FileRoutes

        return FileRoutes(self._file_store)

    @cached_property
    def _replicas(self) -> "ReplicaRoutes":
        from synrepl.transports.http.replica_routes import ReplicaRoutes

        if self._registry is None:
            raise NO_REPLICATION
        return ReplicaRoutes(self._registry)

    @cached_property
    def _admin(self) -> "AdminRoutes":
        from synrepl.transports.http.admin_routes import AdminRoutes

        if self._registry is None or self._roles is None:
            raise NO_REPLICATION
        return AdminRoutes(self._roles, self._registry)

    # -- status, health, metrics -----------------------------------------------------------------------------

    @app.route("/v1/status", methods=["GET"])
    async def get_status(self, request: Any) -> bytes | None:
        """Return the status as JSON."""

        async def answer() -> bytes:
            return jsontext.dumps(self._status(request.access)) + b"\n"

        return await self._answer(request, answer)

    @app.route("/status", methods=["GET"])
    async def get_status_page(self, request: Any) -> bytes | None:
        """Return the status as an HTML page."""

        async def answer() -> bytes:
            # Loaded on first use, to save memory.
            from synrepl.transports.http.status_page import POLICY, page

            request.setHeader(b"content-security-policy", POLICY)
            request.setHeader(b"cache-control", b"no-store")
            return page(self._status(request.access), self._clock.seconds())

        return await self._answer(request, answer, content_type=b"text/html; charset=utf-8")

    @app.route("/livez", methods=["GET"])
    async def get_livez(self, request: Any) -> bytes | None:
        """Respond while the process runs."""

        async def answer() -> bytes:
            return b'{"alive":true}'

        return await self._answer(request, answer, right=None)

    @app.route("/readyz", methods=["GET"])
    async def get_readyz(self, request: Any) -> bytes | None:
        """Report readiness; 503 with the reasons if this daemon is not ready."""

        async def answer() -> bytes:
            reasons = self._not_ready_reasons()
            if not reasons:
                return b'{"ready":true}'
            request.setResponseCode(503)
            return jsontext.dumps({"ready": False, "reasons": reasons})

        return await self._answer(request, answer, right=None)

    @app.route("/metrics", methods=["GET"])
    async def get_metrics(self, request: Any) -> bytes | None:
        """Return the metrics for Prometheus."""

        async def answer() -> bytes:
            collect(
                self._metrics,
                self._log,
                self._publisher,
                self._ingest,
                self._replication,
                self._file_store,
            )
            return generate_latest(self._metrics.registry)

        return await self._answer(request, answer, right=None, content_type=CONTENT_TYPE_LATEST.encode())

    def _not_ready_reasons(self) -> list[str]:
        """Reasons this daemon is not ready, most severe first."""
        is_healthy, why = self._log.healthy
        reasons = [] if is_healthy else [f"log: {why}"]
        for part in (self._replication, self._ingest):
            if part is not None:
                reasons += [reason for reason, _ in part.not_ready_reasons()]
        return reasons

    def _status(self, access: Access) -> dict[str, Any]:
        from synrepl.replication.status import build_status  # loaded on first use

        status = build_status(
            log=self._log,
            publisher=self._publisher,
            table=self._table,
            ingest=self._ingest,
            replication=self._replication,
            files=self._file_store,
            clock=self._clock,
            instance=self._instance,
            server_name=self._server_name,
            started_at=self._started_at,
            version=_version(),
        )
        if access.streams is not None:
            status["streams"] = {
                name: known for name, known in status["streams"].items() if access.sees(name)
            }
            status["recent"] = [fact for fact in status["recent"] if access.sees(fact["stream"])]
        return status

    # -- responses -----------------------------------------------------------------------------------------

    @app.handle_errors(HTTPException)
    def _no_route(self, request: Any, failure: Failure) -> bytes:
        """Respond to an unknown URL or method."""
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
                    f"{method} is not supported for this URL; use {allowed.decode()}",
                )
            )
            return self._refuse(request, ApiError(405, code, message, allow=allowed))
        if is_synapse:
            return self._refuse(request, ApiError(404, "M_UNRECOGNIZED", "Unrecognized request"))
        return self._refuse(
            request, ApiError(404, "not_found", "no such URL in this API (docs/reference/http.md)")
        )

    async def _answer(
        self,
        request: Any,
        answer: Callable[[], Awaitable[bytes | None]],
        *,
        content_type: bytes = JSON,
        right: Right | None = Right.READ,
        stream: str | None = None,
    ) -> bytes | None:
        """Return the body that `answer` returns, or of the error; None if `answer` wrote the response itself.

        The peer needs this `right`, and the right to see this `stream`; with None, no right is needed.
        """
        try:
            self._check_access(request, right, stream)
            _check_digest(request)
            body = await answer()
        except CancelledError:
            raise
        except Exception as error:
            refused = as_api_error(error)
            if refused is not None and isinstance(error, MemoryError | OSError):
                self._logger.error("request refused: {why}", why=refused)
            if refused is None:
                self._logger.failure("{method} {path} failed", method=request.method, path=request.path)
                refused = INTERNAL
            return self._refuse(request, refused)
        if body is not None:
            request.setHeader(b"content-type", content_type)
            request.setHeader(b"content-length", b"%d" % len(body))
            _set_digest(request, body)
        return body

    def _check_access(self, request: Any, right: Right | None, stream: str | None) -> None:
        """Set `request.access`. Raises `ApiError` if the peer's rights do not suffice."""
        try:
            request.access = getattr(request, "access", None) or self._guard.access(request)
        except ApiError as refused:
            if refused.status != UNAUTHORIZED:
                raise
            if right is None:
                return
            if request.path.startswith(b"/_synapse/"):
                raise ApiError(500, "M_UNKNOWN", "Internal server error") from refused
            raise
        if right is not None:
            check_right(request.access, right)
        if stream is not None:
            check_streams(request.access, stream)
        if request.method == b"POST":
            check_content_type(request)

    @staticmethod
    def _refuse(request: Any, refused: ApiError) -> bytes:
        request.setResponseCode(refused.status)
        for name, value in refused.headers.items():
            request.setHeader(name, value)
        body = synapse_body(refused) if request.path.startswith(b"/_synapse/") else api_body(refused)
        request.setHeader(b"content-type", JSON)
        request.setHeader(b"content-length", b"%d" % len(body))
        _set_digest(request, body)
        return body


def _check_digest(request: Any) -> None:
    """Raises `ApiError` if the body does not match its Content-Digest."""
    digests = headers(request, HEADER)
    if not digests or request.method != b"POST":  # the path of a file has its checksum
        return
    body = request.content.read()
    request.content.seek(0)
    if not matches_digest(body, digests):
        why = "the body does not match its Content-Digest: send the request again"
        raise ApiError(400, "garbled", why, more={"retryable": True})


def _set_digest(request: Any, body: bytes) -> None:
    if is_digest_wanted(request.requestHeaders):
        request.setHeader(HEADER.encode(), content_digest(body).encode())


def _version() -> str:
    try:
        return version("synrepl")
    except PackageNotFoundError:
        return "unknown"
