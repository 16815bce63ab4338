"""Records and errors of files."""

from collections.abc import Sequence

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import EMPTY

__all__ = [
    "ChecksumMismatch",
    "Damaged",
    "FailingFile",
    "MissingFile",
    "NamedFile",
    "QueueSummary",
    "LogProgress",
    "WantedFile",
]


class ChecksumMismatch(StorageError):
    """The received bytes are not those announced. `expected` and `found` are checksums, or sizes."""

    def __init__(self, *, op: str, expected: str, found: str, why: str) -> None:
        super().__init__(op=op, why=why, retryable=True)
        self.expected = expected
        self.found = found


class Damaged(StorageError):
    """A stored file was damaged; it is in quarantine now, and counts as missing."""


class NamedFile(msgspec.Struct, frozen=True):
    """A row of ``files``: from `serial` on the name refers to these bytes, or to none."""

    name: str
    sha256: str | None
    size: int | None
    serial: int


class LogProgress(msgspec.Struct, frozen=True):
    """The position up to which the log was read: `serial`, with its `digest`."""

    serial: int = 0
    digest: str = EMPTY

    @property
    def text(self) -> str:
        """The text that is stored in a note; `read` parses it."""
        return f"{self.serial} {self.digest}"

    @classmethod
    def read(cls, text: str) -> "LogProgress":
        """Parse a note; the beginning of the log if it is empty."""
        serial, _, digest = text.partition(" ")
        return cls(int(serial), digest) if serial else cls()


class WantedFile(msgspec.Struct, frozen=True):
    """A file to be fetched; `tries` downloads have failed."""

    sha256: str
    size: int
    name: str
    serial: int
    demanded: bool
    tries: int


class MissingFile(msgspec.Struct, frozen=True):
    """A name whose file is not stored."""

    name: str
    sha256: str


class FailingFile(msgspec.Struct, frozen=True):
    """A file whose downloads failed so far, the reason, and the time of the next retry."""

    name: str
    sha256: str
    why: str
    tries: int
    next_at_ms: int
    since_ms: int


class QueueSummary(msgspec.Struct, frozen=True):
    """The state of the queue: `missing` files, those of them that are `wanted` (to be fetched), the time
    since the oldest is missing, and the first of the failing ones."""

    missing: int = 0
    wanted: int = 0
    failing_count: int = 0
    oldest_since_ms: int | None = None
    failing: Sequence[FailingFile] = ()
    first_missing: str = ""
