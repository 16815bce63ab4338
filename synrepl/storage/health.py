"""Which reads of a log fail, and what is read again to know when they work.

A failure is forgotten once the same read works: another one may touch other pages of the database. What may
pass by itself (`retryable`) counts only when it fails again a moment later.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from synrepl.errors import StorageError

__all__ = ["CHECK_SECONDS", "DOUBT_SECONDS", "Probe", "ReadHealth"]

CHECK_SECONDS: Final = 5.0
"""How often the log is looked at, and reads that fail are tried again."""

DOUBT_SECONDS: Final = 1.0
"""How soon a read is tried again that failed in a way that may have passed."""

Probe = Callable[[], Awaitable[object]]
"""The read that failed, to be tried again."""


class FailingRead(msgspec.Struct):
    """One kind of read that fails; `probe` is None where only somebody else can try it again."""

    why: str
    since: float
    is_sure: bool
    is_retryable: bool
    probe: Probe | None


class ReadHealth:
    """The kinds of reads that fail now: of each the first failure, until that very read works."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._failing: dict[str, FailingRead] = {}

    def failed(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        """A read has failed, or the probe of this kind has failed again."""
        known = self._failing.get(kind)
        if known is None:
            since, sure = self._seconds(), not error.retryable
            self._failing[kind] = FailingRead(str(error), since, sure, error.retryable, probe)
        elif known.probe is probe:
            known.why, known.is_sure, known.is_retryable = str(error), True, error.retryable
        elif not error.retryable and not known.is_sure:
            self._failing[kind] = FailingRead(str(error), known.since, True, False, probe)

    def worked(self, kind: str) -> None:
        """The read of this kind that had failed works."""
        self._failing.pop(kind, None)

    def clear(self) -> None:
        """It is another log now."""
        self._failing.clear()

    @property
    def probes(self) -> list[tuple[str, Probe]]:
        """What to try again."""
        return [(kind, one.probe) for kind, one in self._failing.items() if one.probe is not None]

    @property
    def why(self) -> str:
        """The failure that has lasted longest; empty if all reads work, as far as is known."""
        return self._worst.why if self._worst is not None else ""

    @property
    def since(self) -> float:
        """When that one was first seen."""
        return self._worst.since if self._worst is not None else self._seconds()

    @property
    def next_seconds(self) -> float:
        """How soon to look again."""
        may_pass = any(one.is_retryable and one.probe is not None for one in self._failing.values())
        return DOUBT_SECONDS if may_pass else CHECK_SECONDS

    @property
    def _worst(self) -> FailingRead | None:
        return next((one for one in self._failing.values() if one.is_sure), None)
