"""An object store for tests that speaks S3."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.request import Request, urlopen

__all__ = ["CREDENTIALS", "s3_bucket"]

CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The environment of its clients."""

BUCKET: Final = "archives"

# In a process of its own: delta-rs holds the lock of the interpreter while it reads a history.
SERVER: Final = """
import os, re, signal
from collections import Counter
from moto.server import ThreadedMotoServer
from moto.moto_server import threaded_moto_server

KILLS = re.compile(r"Credential=kill-(request|answer)-(\\d+)-(\\d+)/")
made = Counter()

class KillingApp:
    def __init__(self, *given, **options):
        self.inner = inner(*given, **options)

    def __call__(self, environ, start):
        kill = KILLS.search(environ.get("HTTP_AUTHORIZATION", ""))
        path = environ["PATH_INFO"]
        if not (kill and environ["REQUEST_METHOD"] == "PUT" and "/_delta_log/" in path):
            return self.inner(environ, start)
        point, count, pid = kill[1], int(kill[2]), int(kill[3])
        made[pid] += 1
        if made[pid] != count:
            return self.inner(environ, start)
        if point == "answer":
            answer = list(self.inner(environ, start))
            os.kill(pid, signal.SIGKILL)
            return answer
        os.kill(pid, signal.SIGKILL)
        start("503 Service Unavailable", [])
        return []

inner = threaded_moto_server.DomainDispatcherApplication
threaded_moto_server.DomainDispatcherApplication = KillingApp
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
"""
"""Kills a client whose access key is ``kill-POINT-COUNT-PID``, at the write of its commit with this number.

At the point ``request`` the write is not applied; at the point ``answer`` it is, and the client is not told.
"""


@contextmanager
def s3_bucket() -> Iterator[str]:
    """The location of a folder in a new bucket."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = f"127.0.0.1:{int(server.stdout.readline())}"
            urlopen(Request(f"http://{address}/{BUCKET}", method="PUT")).close()
            yield f"s3://{BUCKET}/one/archive?endpoint_override={address}&scheme=http&region=us-east-1"
        finally:
            server.kill()
