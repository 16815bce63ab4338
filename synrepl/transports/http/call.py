"""One request of a route, as its handler sees it."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from synrepl.http_api.route import Route
from synrepl.ports.access import Access
from synrepl.replication.holdings import Holdings
from synrepl.replication.log_waiters import TooManyWaiting
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.holdings_check import check_readable
from synrepl.transports.http.services import Services

if TYPE_CHECKING:
    from synrepl.replication.relay import ReplicaRegistry
    from synrepl.replication.roles import RoleManager
    from synrepl.transports.http.changelog import Changelog

__all__ = ["ApiState", "Call"]


class ApiState:
    """The services, and what the requests of one site share besides."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.started_at = services.clock.seconds() if services.started_at is None else services.started_at

    @cached_property
    def changelog(self) -> "Changelog":
        """Serves the log."""
        from synrepl.transports.http.changelog import Changelog  # loaded on first use, to save memory

        services = self.services
        return Changelog(services.log, services.publisher, services.clock, services.publisher.waiters)


class Call:
    """A request: the variable parts of its `path`, its `query` and headers by name, the peer's `access`."""

    def __init__(self, state: ApiState, route: Route, request: Any, path: dict[str, str]) -> None:
        self.state = state
        self.services = state.services
        self.route = route
        self.request = request
        self.path = path
        self.query: dict[str, Any] = {}

    @property
    def access(self) -> Access:
        """The rights of the peer. A public route may have none."""
        access: Access = self.request.access
        return access

    @property
    def holdings(self) -> Holdings:
        """The streams and writers that this daemon holds."""
        return self.services.publisher.holdings

    @property
    def roles(self) -> "RoleManager":
        """The roles. Raises `ApiError` if this daemon has none."""
        if self.services.roles is None or self.services.relays is None:
            raise _no_replication()
        return self.services.roles

    @property
    def registry(self) -> "ReplicaRegistry":
        """The replicas. Raises `ApiError` if this daemon serves none."""
        if self.services.relays is None:
            raise _no_replication()
        return self.services.relays

    def check_fresh(self) -> None:
        """Raises `ApiError` if this daemon has no complete copy, or a stale one that it refuses to serve."""
        check_readable(self.holdings)
        services = self.services
        if (
            services.settings.refuse_stale_reads
            and services.replication is not None
            and (reasons := services.replication.not_ready_reasons())
        ):
            raise ApiError("not_ready", reasons[0][0])

    async def read_your_writes(self) -> None:
        """Wait until the log reaches the query's ``min_serial``.

        Raises `ApiError` on timeout, and at the limit of waiters.
        """
        serial, log = self.query["min_serial"], self.services.log
        try:
            is_here = await self.services.publisher.waiters.wait_for(serial, self.query["timeout"])
        except TooManyWaiting as error:
            raise ApiError("too_many_waiting", str(error)) from error
        if not is_here:
            why = f"serial {serial} has not arrived yet; this log is at {log.serial}"
            raise ApiError("not_here_yet", why, serial=serial, at=log.serial)


def _no_replication() -> ApiError:
    return ApiError("not_found", "this daemon serves no replicas")
