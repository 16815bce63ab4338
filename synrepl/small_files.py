"""Reads small files whose paths come from others: they may be large, or no regular files."""

import os
import select
import stat
import time
from pathlib import Path
from typing import Final

from synrepl.errors import ConfigError

MAX_BYTES: Final = 1024 * 1024
"""The most bytes of a file."""
PIPE_SECONDS: Final = 2.0
"""How long the content of a pipe is awaited."""


def read_small_file(path: str | os.PathLike[str], what: str = "") -> bytes:
    """Read a regular file of at most a mebibyte, or a pipe, as a shell makes one for ``<(command)``.

    Raises `ConfigError`, whose text begins with `what` and the path: also for a device, as a link to
    ``/dev/zero``, for a larger file, and for a pipe whose content is not there within two seconds.
    """
    name = f"{what} {Path(path)}".strip()
    try:
        # Opening a pipe would otherwise wait for its writer.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _read(number, name)
        finally:
            os.close(number)
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error
    except ValueError as error:  # a path with a NUL
        raise ConfigError(f"cannot read {name}: {error}") from error


def _read(number: int, name: str) -> bytes:
    mode = os.fstat(number).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        what = "a directory" if stat.S_ISDIR(mode) else "neither a file nor a pipe"
        raise ConfigError(f"cannot read {name}: it is {what}")
    until = time.monotonic() + PIPE_SECONDS
    waiting = select.poll()
    waiting.register(number, select.POLLIN)
    found = bytearray()
    while True:
        left = max(0.0, until - time.monotonic())
        if stat.S_ISFIFO(mode) and not waiting.poll(left * 1000):
            raise ConfigError(f"cannot read {name}: the pipe has not ended within {PIPE_SECONDS:g} s")
        part = os.read(number, MAX_BYTES + 1 - len(found))
        if not part:
            return bytes(found)
        found += part
        if len(found) > MAX_BYTES:
            raise ConfigError(f"cannot read {name}: it has more than {MAX_BYTES // 1024} KiB")
