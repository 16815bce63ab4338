"""What a daemon with default settings has imported when it is ready, and nobody has asked it for anything.

Or after a single request for its health.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache

_CODE = """
import json, socket, sys

importers = {}

class Watcher:
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        importers[name] = frame.f_globals.get("__name__", "")

sys.meta_path.insert(0, Watcher())

from synrepl.tap import Options, makeService
from twisted.internet import reactor, threads

options = Options()
local = "tcp:0:interface=127.0.0.1"
options.parseOptions(["--listen", local, "--http", local, "--database", "sqlite:" + sys.argv[1]])
daemon = makeService(options)


def ask():
    with socket.create_connection(("127.0.0.1", daemon.listeners.ports[-1].getHost().port)) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


ended = lambda _: reactor.stop()
if sys.argv[2:]:
    daemon.ready.addCallback(lambda _: threads.deferToThread(ask))
daemon.ready.addCallback(lambda _: print(json.dumps({name: importers.get(name, "") for name in sys.modules})))
daemon.ready.addCallback(lambda _: daemon.stopService()).addBoth(ended)
reactor.callWhenRunning(daemon.startService)
reactor.run()
"""


@cache
def imported_by_an_idle_daemon(*, is_asked: bool = False) -> Mapping[str, str]:
    """The modules of such a daemon, each with the one that imported it first. `is_asked`: after a request."""
    with tempfile.TemporaryDirectory(prefix="synrepl-idle-") as folder:
        ended = subprocess.run(
            [sys.executable, "-c", _CODE, f"{folder}/synrepl.db", *["asked"] * is_asked],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    found: dict[str, str] = json.loads(ended.stdout.splitlines()[0])
    return found


def unwanted(packages: Iterable[str], but: Iterable[str] = (), *, is_asked: bool = False) -> dict[str, str]:
    """Those of these modules and of what is in them, except `but`, which an idle daemon has: by importer."""
    left = {*but}
    inside = tuple(f"{package}." for package in packages)
    return {
        name: importer
        for name, importer in imported_by_an_idle_daemon(is_asked=is_asked).items()
        if (name in {*packages} or name.startswith(inside)) and name not in left
    }
