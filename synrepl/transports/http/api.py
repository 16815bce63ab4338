"""What is asked where, and how it is answered.

Klein imports the reactor, so only `server.make_site` imports this module, and only when it is called.
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
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.streams import jsontext
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api_error import INTERNAL, ApiError, as_refused, ours, synapse
from synrepl.transports.http.append_body import check_writer, read_body, read_facts
from synrepl.transports.http.authorization import AccessCheck, check_right, check_streams
from synrepl.transports.http.content_digest import HEADER, content_digest, is_intact, is_wanted
from synrepl.transports.http.holdings_check import check_held, check_readable, filtered, say_held
from synrepl.transports.http.log_waiters import LogWaiters, read_your_writes
from synrepl.transports.http.metrics_collector import collect
from synrepl.transports.http.origin_check import check_content_type
from synrepl.transports.http.query import headers, integers, reader_of
from synrepl.transports.http.row_routes import RowRoutes
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.replication.files import Files
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
NO_COPIES: Final = ApiError(404, "not_found", "this log has no copies")
CATCH_UP: Final = "/_synapse/replication/get_repl_stream_updates/"


class IWriteForwarder(Protocol):
    """Who takes facts that are posted to a replica; `relaying.Relaying` is one."""

    @property
    def is_active(self) -> bool:
        """Whether facts go to the primary."""

    async def answer(self, request: Any, stream: Stream[Any], body: bytes, waiting: LogWaiters) -> bytes:
        """What the primary answers. Raises `ApiError`."""


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
        bringing: "StatusIngest | None",
        copies: "StatusReplication | None",
        metrics: Metrics,
        clock: IClock,
        instance: str,
        server_name: str,
        guard: AccessCheck,
        dialect: Dialect | None,
        started_at: float,
        files: "Files | None" = None,
        relaying: "IWriteForwarder | None" = None,
        roles: "RoleManager | None" = None,
        relays: "ReplicaRegistry | None" = None,
        refuses_stale: bool = False,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._table = table
        self._bringing = bringing
        self._copies = copies
        self._metrics = metrics
        self._clock = clock
        self._instance = instance
        self._server_name = server_name
        self._guard = guard
        self._started_at = started_at
        self._relaying = relaying
        self._waiting = LogWaiters(log, clock)
        self._rows = RowRoutes(
            log=log,
            table=table,
            tables=bringing,
            metrics=metrics,
            waiting=self._waiting,
            instance=instance,
            dialect=dialect,
            holdings=lambda: self._holdings,
        )
        self._described_files = files
        self._roles = roles
        self._relays = relays
        self._refuses_stale = refuses_stale

    # -- facts in ------------------------------------------------------------------------------------------

    @app.route("/v1/streams/<stream>/facts", methods=["POST"])
    async def post_facts(self, request: Any, stream: str) -> bytes | None:
        """Facts become durable, then the answer says what they became."""

        async def answer() -> bytes:
            declared = self._table[stream]
            body = request.content.read()
            if self._relaying is not None and self._relaying.is_active:
                return await self._relaying.answer(request, declared, body, self._waiting)
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
        """Facts of several streams become durable together."""

        async def answer() -> bytes:
            from synrepl.transports.http.batch_append import append_all

            if self._relaying is not None and self._relaying.is_active:
                if self._roles is not None and (stopped := self._roles.forwarding_refusal("")) is not None:
                    raise stopped
                why = "this is a replica: post these to the primary, or each stream by itself"
                raise ApiError(409, "not_primary", why)
            return await append_all(
                request.content.read(),
                log=self._log,
                table=self._table,
                files=self._described_files,
                clock=self._clock,
                instance=self._instance,
                access=request.access,
            )

        return await self._answer(request, answer, right=Right.WRITE)

    # -- rows out ------------------------------------------------------------------------------------------

    @app.route("/v1/streams/<stream>/rows", methods=["GET"])
    async def get_rows(self, request: Any, stream: str) -> bytes | None:
        """A page of one writer's rows, in the newest shape."""
        return await self._answer(
            request, lambda: self._fresh(lambda: self._rows.page(request, stream)), stream=stream
        )

    @app.route("/v1/streams/<stream>/allocated", methods=["GET"])
    async def get_allocated(self, request: Any, stream: str) -> bytes | None:
        """How far there is anything to wait for."""
        return await self._answer(
            request, lambda: self._fresh(lambda: self._rows.allocated(request, stream)), stream=stream
        )

    @app.route(CATCH_UP + "<stream>/<txn_id>", methods=["GET"])
    async def get_updates(self, request: Any, stream: str, txn_id: str) -> bytes | None:
        """What a follower missed, as Synapse answers it."""
        return await self._answer(
            request, lambda: self._fresh(lambda: self._rows.updates(request, stream)), stream=stream
        )

    async def _fresh(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """What a read gives, unless this daemon has no whole copy, or is to answer none while it may lack
        something."""
        self._check_fresh()
        return await read()

    def _check_fresh(self) -> None:
        check_readable(self._holdings)
        if self._refuses_stale and self._copies is not None and (reasons := self._copies.not_ready_reasons()):
            raise ApiError(503, "not_ready", reasons[0][0], retry_after=b"5")

    # -- the log out ---------------------------------------------------------------------------------------

    @app.route("/v1/changelog", methods=["GET"])
    async def get_changelog(self, request: Any) -> bytes | None:
        """The log from a serial on."""

        async def answer() -> None:
            from synrepl.transports.http.arrow import arrow_form
            from synrepl.transports.http.changelog_query import read_wanted

            wanted = read_wanted(request, self._table, self._holdings)
            form = arrow_form(request, wanted, self._clock)
            await self._begin_reading(request, wanted)
            say_held(request, self._holdings)
            await self.changelog.serve(request, wanted, form)

        return await self._answer(request, answer)

    @app.route("/v1/extent", methods=["GET"])
    async def get_extent(self, request: Any) -> bytes | None:
        """How much there is from a serial on."""

        async def answer() -> bytes:
            from synrepl.transports.http.changelog_query import read_wanted
            from synrepl.transports.http.log_extent import extent

            wanted = read_wanted(request, self._table, self._holdings)
            await self._begin_reading(request, wanted)
            await self.changelog.check(wanted)
            say_held(request, self._holdings)
            return jsontext.dumps(await extent(self._log, wanted))

        return await self._answer(request, answer)

    async def _begin_reading(self, request: Any, wanted: "ChangelogQuery") -> None:
        """Once the log is as far as is asked; whoever reads under a name has it kept."""
        self._check_fresh()
        await read_your_writes(request, self._log, self._waiting)
        reader = reader_of(request)
        if reader is not None and self._relays is not None:
            await self.changelog.check(wanted)
            self._replicas.reads(reader, wanted.since, wanted.wait)

    @app.route("/v1/digests", methods=["GET"])
    async def get_digests(self, request: Any) -> bytes | None:
        """What stands at some serials: where two histories part is found by halving."""

        async def answer() -> bytes:
            from synrepl.transports.http.fork_check import digests

            return jsontext.dumps(await digests(self._log, integers(request, "serials", most=MAX_SERIALS)))

        return await self._answer(request, answer)

    # -- files ---------------------------------------------------------------------------------------------

    @app.route("/v1/files/sha256/<sha256>", methods=["PUT"])
    async def put_file(self, request: Any, sha256: str) -> bytes | None:
        """Bytes are kept, under their checksum."""
        return await self._answer(
            request, lambda: self._files.put(request, sha256), right=Right.WRITE, stream=FILES
        )

    @app.route("/v1/files/sha256/<sha256>", methods=["GET"])
    async def get_file(self, request: Any, sha256: str) -> bytes | None:
        """Bytes by their checksum."""

        async def answer() -> bytes | None:
            check_readable(self._holdings)
            check_held(self._holdings, [FILES])
            try:
                return await self._files.get(request, sha256)
            except ApiError as refused:
                if refused.code == NO_SUCH_FILE and self._holdings.filter.writers is not None:
                    # A writer whose facts are not here may have named it.
                    why = f"{refused.message} here: {self._holdings.describe()}"
                    raise filtered(self._holdings, why) from refused
                raise

        return await self._answer(request, answer, stream=FILES)

    # -- copies of this log --------------------------------------------------------------------------------

    @app.route("/v1/replication", methods=["GET"])
    async def get_replication(self, request: Any) -> bytes | None:
        """Which history this is, where it begins and stands."""
        return await self._answer(request, lambda: self._replicas.about(request))

    @app.route("/v1/replicas/<uuid>", methods=["POST"])
    async def post_replica(self, request: Any, uuid: str) -> bytes | None:
        """A replica asks to be served over HTTP."""
        return await self._answer(
            request, lambda: self._replicas.subscribe(request, uuid), right=Right.REPLICATE
        )

    @app.route("/v1/replicas/<uuid>/join", methods=["POST"])
    async def post_join(self, request: Any, uuid: str) -> bytes | None:
        """A replica asks for a copy of everything."""
        return await self._answer(request, lambda: self._replicas.join(request, uuid), right=Right.REPLICATE)

    @app.route("/v1/replicas/<uuid>/ack", methods=["POST"])
    async def post_ack(self, request: Any, uuid: str) -> bytes | None:
        """A replica says how far it is."""
        return await self._answer(
            request, lambda: self._replicas.acknowledge(request, uuid), right=Right.REPLICATE
        )

    @app.route("/v1/commands", methods=["POST"])
    async def post_commands(self, request: Any) -> bytes | None:
        """A replica passes on what its followers send up."""
        return await self._answer(request, lambda: self._commands.take(request), right=Right.REPLICATE)

    @app.route("/v1/commands", methods=["GET"])
    async def get_commands(self, request: Any) -> bytes | None:
        """What followers send up, and this daemon cannot act on."""
        return await self._answer(
            request, lambda: self._commands.read(request), right=Right.ADMINISTER, content_type=NDJSON
        )

    @app.route("/v1/commands/ack", methods=["POST"])
    async def post_commands_ack(self, request: Any) -> bytes | None:
        """The homeserver has acted on them."""
        return await self._answer(
            request, lambda: self._commands.acknowledge(request), right=Right.ADMINISTER
        )

    @app.route("/v1/syncing", methods=["GET"])
    async def get_syncing(self, request: Any) -> bytes | None:
        """Who is syncing now."""
        return await self._answer(request, lambda: self._commands.syncing(request), stream=PRESENCE)

    @app.route("/v1/leases", methods=["GET"])
    async def get_leases(self, request: Any) -> bytes | None:
        """Who needs which part of the log."""
        return await self._answer(request, lambda: self._standing.list_leases(request))

    @app.route("/v1/leases", methods=["POST"])
    async def post_lease(self, request: Any) -> bytes | None:
        """A replica is expected."""
        return await self._answer(request, lambda: self._standing.add_lease(request), right=Right.ADMINISTER)

    @app.route("/v1/leases/<name>", methods=["DELETE"])
    async def delete_lease(self, request: Any, name: str) -> bytes | None:
        """A replica is not waited for any more."""
        return await self._answer(
            request, lambda: self._standing.drop_lease(request, name), right=Right.ADMINISTER
        )

    @app.route("/v1/promote", methods=["POST"])
    async def post_promote(self, request: Any) -> bytes | None:
        """This replica becomes primary."""
        return await self._answer(request, lambda: self._standing.promote(request), right=Right.ADMINISTER)

    @app.route("/v1/resync", methods=["POST"])
    async def post_resync(self, request: Any) -> bytes | None:
        """Give up what only this copy has, and join again."""
        return await self._answer(request, lambda: self._standing.resync(request), right=Right.ADMINISTER)

    @app.route("/v1/handover", methods=["POST"])
    async def post_handover(self, request: Any) -> bytes | None:
        """Another daemon is about to become primary."""
        return await self._answer(request, lambda: self._standing.hand_over(request), right=Right.ADMINISTER)

    @app.route("/v1/claim", methods=["POST"])
    async def post_claim(self, request: Any) -> bytes | None:
        """Another daemon says that it is primary."""
        return await self._answer(request, lambda: self._standing.claim(request), right=Right.ADMINISTER)

    @property
    def _holdings(self) -> Holdings:
        return self._publisher.holdings

    # -- made when it is first asked for, so that who is never asked need not have it in memory ------------

    @cached_property
    def changelog(self) -> "Changelog":
        """Who serves the log."""
        from synrepl.transports.http.changelog import Changelog

        return Changelog(self._log, self._publisher, self._clock, self._waiting)

    @cached_property
    def _commands(self) -> "CommandRoutes":
        from synrepl.transports.http.command_routes import CommandRoutes

        return CommandRoutes(self._publisher)

    @cached_property
    def _files(self) -> "FileRoutes":
        from synrepl.transports.http.file_routes import FileRoutes

        return FileRoutes(self._described_files)

    @cached_property
    def _replicas(self) -> "ReplicaRoutes":
        from synrepl.transports.http.replica_routes import ReplicaRoutes

        if self._relays is None:
            raise NO_COPIES
        return ReplicaRoutes(self._relays)

    @cached_property
    def _standing(self) -> "AdminRoutes":
        from synrepl.transports.http.admin_routes import AdminRoutes

        if self._relays is None or self._roles is None:
            raise NO_COPIES
        return AdminRoutes(self._roles, self._relays)

    # -- what is known about this daemon -------------------------------------------------------------------

    @app.route("/v1/status", methods=["GET"])
    async def get_status(self, request: Any) -> bytes | None:
        """Where it stands, for programs."""

        async def answer() -> bytes:
            return jsontext.dumps(self._status(request.access)) + b"\n"

        return await self._answer(request, answer)

    @app.route("/status", methods=["GET"])
    async def get_status_page(self, request: Any) -> bytes | None:
        """Where it stands, for people."""

        async def answer() -> bytes:
            # Here, so that a daemon that nobody looks at need not have it in memory.
            from synrepl.transports.http.status_page import POLICY, page

            request.setHeader(b"content-security-policy", POLICY)
            request.setHeader(b"cache-control", b"no-store")
            return page(self._status(request.access), self._clock.seconds())

        return await self._answer(request, answer, content_type=b"text/html; charset=utf-8")

    @app.route("/livez", methods=["GET"])
    async def get_livez(self, request: Any) -> bytes | None:
        """It runs: an answer is all there is to it."""

        async def answer() -> bytes:
            return b'{"alive":true}'

        return await self._answer(request, answer, right=None)

    @app.route("/readyz", methods=["GET"])
    async def get_readyz(self, request: Any) -> bytes | None:
        """Whether it can do its work, and if not, why."""

        async def answer() -> bytes:
            reasons = self._reasons()
            if not reasons:
                return b'{"ready":true}'
            request.setResponseCode(503)
            return jsontext.dumps({"ready": False, "reasons": reasons})

        return await self._answer(request, answer, right=None)

    @app.route("/metrics", methods=["GET"])
    async def get_metrics(self, request: Any) -> bytes | None:
        """Every number, for Prometheus."""

        async def answer() -> bytes:
            collect(
                self._metrics,
                self._log,
                self._publisher,
                self._bringing,
                self._copies,
                self._described_files,
            )
            return generate_latest(self._metrics.registry)

        return await self._answer(request, answer, right=None, content_type=CONTENT_TYPE_LATEST.encode())

    def _reasons(self) -> list[str]:
        """Why this daemon cannot do its work, the worst first."""
        is_healthy, why = self._log.healthy
        reasons = [] if is_healthy else [f"log: {why}"]
        for part in (self._copies, self._bringing):
            if part is not None:
                reasons += [reason for reason, _ in part.not_ready_reasons()]
        return reasons

    def _status(self, access: Access) -> dict[str, Any]:
        from synrepl.replication.status import build_status  # here for the same reason

        status = build_status(
            log=self._log,
            publisher=self._publisher,
            table=self._table,
            bringing=self._bringing,
            copies=self._copies,
            files=self._described_files,
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
            return self._refuse(request, ApiError(405, code, message, allow=allowed))
        if is_synapse:
            return self._refuse(request, ApiError(404, "M_UNRECOGNIZED", "Unrecognized request"))
        return self._refuse(request, ApiError(404, "not_found", "there is nothing here"))

    async def _answer(
        self,
        request: Any,
        answer: Callable[[], Awaitable[bytes | None]],
        *,
        content_type: bytes = JSON,
        right: Right | None = Right.READ,
        stream: str | None = None,
    ) -> bytes | None:
        """What `answer` gives, or why not; None if it wrote by itself.

        A peer needs this `right`, and to see this `stream`; None: any may ask.
        """
        try:
            self._check_access(request, right, stream)
            _check_intact(request)
            body = await answer()
        except CancelledError:
            raise
        except Exception as error:
            refused = as_refused(error)
            if refused is not None and isinstance(error, MemoryError | OSError):
                self._logger.error("a request was refused: {why}", why=refused)
            if refused is None:
                self._logger.failure("{method} {path} failed", method=request.method, path=request.path)
                refused = INTERNAL
            return self._refuse(request, refused)
        if body is not None:
            request.setHeader(b"content-type", content_type)
            request.setHeader(b"content-length", b"%d" % len(body))
            _say_digest(request, body)
        return body

    def _check_access(self, request: Any, right: Right | None, stream: str | None) -> None:
        """Find out what the peer may do (`request.access`). Raises `ApiError` if that is not enough."""
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
        body = synapse(refused) if request.path.startswith(b"/_synapse/") else ours(refused)
        request.setHeader(b"content-type", JSON)
        request.setHeader(b"content-length", b"%d" % len(body))
        _say_digest(request, body)
        return body


def _check_intact(request: Any) -> None:
    """Raises `ApiError` if the body is known to be another one than was sent."""
    said = headers(request, HEADER)
    if not said or request.method != b"POST":  # a file has its checksum in its path
        return
    body = request.content.read()
    request.content.seek(0)
    if not is_intact(body, said):
        why = "the body was changed on the way: its Content-Digest is another one"
        raise ApiError(400, "garbled", why, more={"retryable": True})


def _say_digest(request: Any, body: bytes) -> None:
    if is_wanted(request.requestHeaders):
        request.setHeader(HEADER.encode(), content_digest(body).encode())


def _version() -> str:
    try:
        return version("synrepl")
    except PackageNotFoundError:
        return "unknown"
