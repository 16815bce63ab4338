"""Programs that use the RESP port as clients with their defaults do: PROGRAM PORT CHANNEL [PASSWORD].

Each prints one JSON object: what it was answered, and the message that it got of what it published.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.service.processes import ROOT, Daemon

__all__ = ["COMMON", "SECRETS", "run", "serving"]

SECRETS: Final = ("", "s3cret")
"""The secrets of daemons that clients are tried with; the first has none."""

COMMON: Final = {"get": "v", "none": None, "several": ["v", None], "deleted": 1}
"""Answers that each client gets."""

SECONDS: Final = 60.0


@contextmanager
def serving(folder: Path, secret: str) -> Iterator[list[str]]:
    """A daemon with a RESP port, and the arguments of a client of it."""
    options = ["--server-name", "example.org", "--resp", "tcp:0:interface=127.0.0.1"]
    if secret:
        file = folder / "secret"
        file.write_text(secret)
        file.chmod(0o600)
        options += ["--secret-file", str(file)]
    with Daemon(folder, options=tuple(options)) as daemon:
        line = next(line for line in daemon.lines if "RESP: listening at tcp:" in line)
        yield [line.rsplit(":", 1)[1], "example.org", *([secret] if secret else [])]


def run(command: Sequence[object], more: Mapping[str, str]) -> Any:
    """What this program prints, with more in its environment."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
