"""What a web page can do to the ports of a daemon, the RESP port among them."""

from contextlib import closing
from pathlib import Path

import pytest

from scripts.chromium import Chromium
from tests.channel.processes.test_foreign_protocols import Watcher
from tests.channel.processes.test_foreign_protocols import state as foreign_state
from tests.processes.test_browser_attacks import PROGRAM, Logger, Page, serving
from tests.service.processes import Daemon


@pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium was found on the path, nor named by SYNREPL_CHROMIUM"
)
def test_a_page_in_a_real_browser_reaches_no_port(tmp_path: Path) -> None:
    """It sends its bytes, as a server shows that stands where a port would, and no port takes them."""
    assert PROGRAM is not None
    options = ("--server-name", "example.org", "--resp", "tcp:0:interface=127.0.0.1")
    sent_here: list[tuple[str, str, bytes]] = []

    class Stand(Logger):
        heard = sent_here

    with Daemon(tmp_path, options=options) as daemon, serving(Page) as page, serving(Stand) as logged:
        resp = next(line for line in daemon.lines if "RESP: listening at tcp:" in line).split("at tcp:")[1]
        with closing(Watcher(daemon, resp, "example.org")) as watcher, Chromium(PROGRAM) as browser:
            watcher.heard()
            before = foreign_state(daemon, resp)
            tab = browser.tab(800, 800)
            tab.open(f"http://{page}/")
            for host in (logged, daemon.follow, daemon.url.removeprefix("http://"), resp):
                assert tab.value(f"attack('{host}')")
            after = foreign_state(daemon, resp)
            heard = b"".join(watcher.heard())

    sent = {(method, path) for method, path, body in sent_here if b"PUBLISH" in body}
    assert {("POST", f"/{name}") for name in ("simple", "no-cors", "preflight", "form-plain")} <= sent
    assert ("SET", "/method") in sent
    asked = {(method, path) for method, path, _ in sent_here}
    assert {("OPTIONS", "/preflight"), ("OPTIONS", "/method"), ("GET", "/get"), ("GET", "/socket")} <= asked
    assert before == after
    assert b"evil" not in heard
