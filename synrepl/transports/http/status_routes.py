"""Handlers of status, health and metrics."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from synrepl.streams import jsontext
from synrepl.transports.http.call import Call
from synrepl.transports.http.metrics_collector import collect

__all__ = ["Alive", "Ready", "daemon_version", "livez", "metrics", "page", "readyz", "status"]


class Alive(msgspec.Struct, frozen=True):
    """The process runs."""

    alive: bool = True


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether this daemon is ready; if not, the reasons, most severe first."""

    ready: bool
    reasons: list[str] = []


async def status(call: Call) -> bytes:
    """Return the status as JSON."""
    return jsontext.dumps(_status(call)) + b"\n"


async def page(call: Call) -> bytes:
    """Return the status as an HTML page."""
    # Loaded on first use, to save memory.
    from synrepl.transports.http.status_page import POLICY, page

    call.request.setHeader(b"content-security-policy", POLICY)
    call.request.setHeader(b"cache-control", b"no-store")
    return page(_status(call), call.services.clock.seconds())


async def livez(call: Call) -> Alive:
    """Respond while the process runs."""
    return Alive()


async def readyz(call: Call) -> Ready:
    """Report readiness; 503 with the reasons if this daemon is not ready."""
    services = call.services
    is_healthy, why = services.log.healthy
    reasons = [] if is_healthy else [f"log: {why}"]
    for part in (services.replication, services.ingest):
        if part is not None:
            reasons += [reason for reason, _ in part.not_ready_reasons()]
    if reasons:
        call.request.setResponseCode(503)
    return Ready(not reasons, reasons)


async def metrics(call: Call) -> bytes:
    """Return the metrics for Prometheus."""
    services = call.services
    collect(
        services.metrics,
        services.log,
        services.publisher,
        services.ingest,
        services.replication,
        services.files,
    )
    call.request.setHeader(b"content-type", CONTENT_TYPE_LATEST.encode())
    return generate_latest(services.metrics.registry)


def _status(call: Call) -> dict[str, Any]:
    from synrepl.replication.status import build_status  # loaded on first use

    services, access = call.services, call.access
    found = build_status(
        log=services.log,
        publisher=services.publisher,
        table=services.table,
        ingest=services.ingest,
        replication=services.replication,
        files=services.files,
        clock=services.clock,
        instance=services.settings.instance_name,
        server_name=services.settings.server_name,
        started_at=call.state.started_at,
        version=daemon_version(),
    )
    if access.streams is not None:
        found["streams"] = {name: known for name, known in found["streams"].items() if access.sees(name)}
        found["recent"] = [fact for fact in found["recent"] if access.sees(fact["stream"])]
    return found


@cache
def daemon_version() -> str:
    """Return the installed version of synrepl."""
    try:
        return version("synrepl")
    except PackageNotFoundError:
        return "unknown"
