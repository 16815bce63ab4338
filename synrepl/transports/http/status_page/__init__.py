"""The status page, for people: rendered on the server, complete without the script that refreshes it."""

from synrepl.transports.http.status_page.page import POLICY, page

__all__ = ["POLICY", "page"]
