"""Lock of an archive: one writing job at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from synrepl.errors import ConfigError
from synrepl.pipeline.store import Store

__all__ = ["lock_archive"]

NAME: Final = "_lock"


@contextmanager
def lock_archive(store: Store) -> Iterator[None]:
    """Hold the lock of an archive. Raises `ConfigError` if another process holds the lock.

    A remote store cannot be locked. There the second of two jobs fails at its first manifest, whose
    number exists, and its files are not part of the archive.
    """
    if not store.is_local:
        yield
        return
    path = Path(store.path(NAME))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{store}: another job is writing this archive; wait for the job, or stop it"
            ) from None
        yield
    finally:
        os.close(handle)
