"""One job at a time writes an archive."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from synrepl.errors import ConfigError
from synrepl.pipeline.store import Store

__all__ = ["locked"]

NAME: Final = "_lock"


@contextmanager
def locked(store: Store) -> Iterator[None]:
    """While inside, no other process of this machine is. Raises `ConfigError` if one is already.

    Where the store is elsewhere nothing can be locked; then the second of two jobs fails at its first
    manifest, whose number is taken, and what it wrote counts for nothing.
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
                f"{store}: another job is writing this archive; wait for it, or end it"
            ) from None
        yield
    finally:
        os.close(handle)
