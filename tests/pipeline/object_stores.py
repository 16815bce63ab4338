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
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
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
