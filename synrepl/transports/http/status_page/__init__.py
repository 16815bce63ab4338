"""The status page, for people: rendered on the server, complete without the script that refreshes it."""

from synrepl.transports.http.status_page.page import page
from synrepl.transports.http.status_page.shell import POLICY

__all__ = ["POLICY", "page"]
