"""The page: problems first, then this daemon, its readers and its data."""

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
    """Render a status from `build_status` at a time in Unix seconds."""
    title = f"{status['instance']} of {status['server_name']}"
    title = f"{status['name']} ({title})" if status.get("name") else title
    header = element(
        "header",
        Markup(
            element("h1", f"synrepl · {title}")
            + state(status)
            + element(
                "p", "No response from this daemon: this page is out of date.", class_="lost", role="status"
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
    document = shell(f"{status['state']}: {title}", header + main + element("footer", footer))
    return document.encode("utf-8", "replace")
