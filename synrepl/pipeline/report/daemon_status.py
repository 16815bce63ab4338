"""Status of a running daemon: its readers, their positions, and its gap counters."""

import http.client
import re
from typing import Any, Final

import msgspec

from synrepl.http_api.routes import LEASES, METRICS, STATUS
from synrepl.http_client import BlockingClient, ConnectError, HttpError, NotADaemon

_COUNTER: Final = re.compile(
    r"(?m)^(synrepl_gaps_(?:detected|repaired|lost)_total) (\d+(?:\.\d+)?(?:e\+?\d\d?)?)(?!\S)"
)


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a daemon. `trouble` is the reason if the status is unavailable."""

    url: str
    trouble: str = ""
    status: dict[str, Any] = {}
    leases: list[dict[str, Any]] = []
    gaps: dict[str, int] = {}


def ask(url: str, secret: str | None = None) -> DaemonStatus:
    """Request the status. Raises `NotADaemon` for an invalid address; other failures go into `trouble`."""
    client = BlockingClient(url, secret=secret)
    shown = client.url
    try:
        status = client.json(STATUS.request())
        leases = client.json(LEASES.request())["leases"]
        response = client.stream(METRICS.request(), accept="text/plain")
        gaps = counters(response.read().decode("utf-8", "replace"))
        if not isinstance(status, dict) or not all(isinstance(one, dict) for one in leases):
            raise NotADaemon(f"{shown} does not respond as a synrepl daemon")
    except ConnectError as error:
        return DaemonStatus(url=shown, trouble=f"cannot connect: {error}")
    except HttpError as error:
        return DaemonStatus(url=shown, trouble=f"the daemon refuses the request: {error}")
    except (OSError, http.client.HTTPException):
        return DaemonStatus(url=shown, trouble="the response broke off")
    except (NotADaemon, KeyError, TypeError):
        return DaemonStatus(url=shown, trouble="it does not respond as a synrepl daemon")
    finally:
        client.close()
    return DaemonStatus(url=shown, status=status, leases=leases, gaps=gaps)


def counters(metrics: str) -> dict[str, int]:
    """Return the gap counters in metrics in the text format of Prometheus."""
    return {name: int(float(value)) for name, value in _COUNTER.findall(metrics)}
