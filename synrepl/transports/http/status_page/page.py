"""The page: what is wrong first, then what this daemon is, then who reads it and what it holds."""

from collections.abc import Mapping
from typing import Any

from synrepl.html.humanize import at, span
from synrepl.html.markup import Markup, element
from synrepl.transports.http.status_page.about import errors, log, state, upstream
from synrepl.transports.http.status_page.contents import epoch_starts, files, recent, streams
from synrepl.transports.http.status_page.readers import followers, leases, replicas
from synrepl.transports.http.status_page.shell import shell
from synrepl.transports.http.status_page.sources import heard_from, stuck, tables, unfinished

__all__ = ["page"]


def page(status: Mapping[str, Any], now: float) -> bytes:
    """The page for what `build_status` returned, at this time in Unix seconds."""
    who = f"{status['instance']} of {status['server_name']}"
    who = f"{status['name']} ({who})" if status.get("name") else who
    header = element(
        "header",
        Markup(
            element("h1", f"synrepl · {who}")
            + state(status)
            + element(
                "p", "No answer from this daemon: what stands here is old.", class_="lost", role="status"
            )
            + errors(status, now)
        ),
    )
    main = element(
        "main",
        Markup(
            log(status, now)
            + upstream(status, now)
            + files(status, now)
            + epoch_starts(status, now)
            + replicas(status, now)
            + leases(status, now)
            + stuck(status)
            + heard_from(status)
            + followers(status)
            + tables(status)
            + unfinished(status)
            + streams(status)
            + recent(status, now)
        ),
    )
    footer = f"synrepl {status['version']}, up for {span(status['uptime_seconds'])}; as of {at(now * 1000)}"
    shown = shell(f"{status['state']}: {who}", header + main + element("footer", footer))
    return shown.encode("utf-8", "replace")
