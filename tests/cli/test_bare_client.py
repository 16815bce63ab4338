"""The blocking client where only the standard library is, as on executors of Spark."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.service.processes import ROOT, Daemon

PROGRAM: Final = """
import json, os, sys, threading

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in (*sys.stdlib_module_names, "synrepl"):
            raise ModuleNotFoundError(name + " is not installed here")

sys.path.insert(0, os.getcwd())
sys.meta_path.insert(0, Bare())

from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.routes import APPEND, CHANGELOG, DIGESTS, STATUS
from synrepl.http_client import BlockingClient

def append(client, row, **more):
    body = json.dumps({"facts": [[row]], **more}).encode()
    return client.json(APPEND.request("push_rules"), body)["first_serial"]

def read(client, since, wait=0.0):
    headers, lines = client.lines(CHANGELOG.request(since=since, wait=wait))
    return headers["Synrepl-Epoch"], [json.loads(line)["rows"] for line in lines]

client, other = BlockingClient("http://127.0.0.1:1," + sys.argv[1]), BlockingClient(sys.argv[1])
assert 0 == client.json(STATUS.request())["serial"]
assert 1 == append(client, ["@a:h"])
assert 2 == append(client, ["@b:h"], idempotency_key="k") == append(client, ["@b:h"], idempotency_key="k")
assert ("1", [[["@a:h"]], [["@b:h"]]]) == read(client, 0), read(client, 0)
assert ("1", [[["@b:h"]]]) == read(client, 1)

# It waits for what comes; what has come meanwhile is not missed.
late = threading.Thread(target=append, args=(other, ["@c:h"]))
late.start()
assert ("1", [[["@c:h"]]]) == read(client, 2, wait=20.0)
late.join()
assert set(client.json(DIGESTS.request(serials=[1, 3]))["digests"]) == {"1", "3"}

for call, code in ((lambda: append(client, [1]), "bad_row"), (lambda: read(client, 9), "ahead_of_log")):
    try:
        call()
    except HttpError as error:
        assert code == error.code and not error.retryable, error
    else:
        raise AssertionError(code)
outside = {name.partition(".")[0] for name in sys.modules} - {*sys.stdlib_module_names, "synrepl", "__main__"}
print("outside:", sorted(name for name in outside if not name.startswith("_")))
"""


def test_it_appends_reads_and_tails_with_the_standard_library_alone(tmp_path: Path) -> None:
    """`-S`: nor does a site's startup file bring anything."""
    with Daemon(tmp_path) as daemon:
        result = subprocess.run(
            [sys.executable, "-S", "-c", PROGRAM, daemon.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert ("outside: []\n", "") == (result.stdout, result.stderr)
