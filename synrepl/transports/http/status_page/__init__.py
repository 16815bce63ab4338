"""The status on one page, for people: rendered here, whole without a script, and kept fresh by a tiny one."""

from synrepl.transports.http.status_page.page import page
from synrepl.transports.http.status_page.shell import POLICY

__all__ = ["POLICY", "page"]
