"""Read health of a log: which kinds of reads fail, and how to retry them.

A failure is cleared only when the same read works: another read may touch other pages of the database. A
failure that may pass by itself (`retryable`) counts only if the retry fails too.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from synrepl.errors import StorageError

__all__ = ["CHECK_SECONDS", "RETRY_SOON_SECONDS", "Probe", "ReadHealth"]

CHECK_SECONDS: Final = 5.0
"""How often the log is checked and failed reads are retried, in seconds."""

RETRY_SOON_SECONDS: Final = 1.0
"""How soon a read with a retryable failure is retried, in seconds."""

Probe = Callable[[], Awaitable[object]]
"""Repeats the failed read."""


class FailingRead(msgspec.Struct):
    """One kind of read that fails; `probe` is None if it cannot be retried."""

    why: str
    since: float
    is_sure: bool
    is_retryable: bool
    probe: Probe | None


class ReadHealth:
    """The kinds of reads that fail now. Each has its first failure, until the same read works."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._failing: dict[str, FailingRead] = {}

    def record_failure(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        """Record that a read, or the probe of this kind, has failed."""
        known = self._failing.get(kind)
        if known is None:
            since, sure = self._seconds(), not error.retryable
            self._failing[kind] = FailingRead(str(error), since, sure, error.retryable, probe)
        elif known.probe is probe:
            known.why, known.is_sure, known.is_retryable = str(error), True, error.retryable
        elif not error.retryable and not known.is_sure:
            self._failing[kind] = FailingRead(str(error), known.since, True, False, probe)

    def record_success(self, kind: str) -> None:
        """Record that the failed read of this kind works again."""
        self._failing.pop(kind, None)

    def clear(self) -> None:
        """Forget all failures: the log was replaced."""
        self._failing.clear()

    @property
    def probes(self) -> list[tuple[str, Probe]]:
        """The reads to retry."""
        return [(kind, one.probe) for kind, one in self._failing.items() if one.probe is not None]

    @property
    def why(self) -> str:
        """The failure that has lasted longest; empty if no read is known to fail."""
        return self._worst.why if self._worst is not None else ""

    @property
    def since(self) -> float:
        """When that failure was first seen."""
        return self._worst.since if self._worst is not None else self._seconds()

    @property
    def next_check_seconds(self) -> float:
        """How soon to check again, in seconds."""
        may_pass = any(one.is_retryable and one.probe is not None for one in self._failing.values())
        return RETRY_SOON_SECONDS if may_pass else CHECK_SECONDS

    @property
    def _worst(self) -> FailingRead | None:
        return next((one for one in self._failing.values() if one.is_sure), None)
