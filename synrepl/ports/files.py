"""Interfaces of the files of a log: their store, the queue of missing ones, and their source."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import EMPTY

__all__ = [
    "ChecksumMismatch",
    "Damaged",
    "DiskFull",
    "FailingFile",
    "IChecking",
    "IFetchFile",
    "IFileQueue",
    "IFileStore",
    "IScrub",
    "ISpool",
    "IStoredFile",
    "MissingFile",
    "NamedFile",
    "QueueSummary",
    "LogProgress",
    "WantedFile",
]


class DiskFull(StorageError):
    """The disk is full; nothing of these bytes was stored."""


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


class IFetchFile(Protocol):
    """The source of a replica's files."""

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `on_chunk` with the bytes from `offset` to the end, waiting for each call.

        Raises a `ReplicationError` if the download fails or is cut short; the bytes given until then are
        good. The caller verifies the checksum.
        """

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Upload a file: `read` gives a number of its `size` bytes from an offset on. `hops` counts the
        daemons that it passes through.

        Returns when the other side has stored it. Raises a `ReplicationError` if it has not, or if that is
        unknown.
        """


class ISpool(Protocol):
    """Incoming bytes, on disk but not stored yet. Blocking; one thread at a time."""

    @property
    def length(self) -> int:
        """The number of bytes received and hashed."""

    def rehash(self, count: int) -> bool:
        """Hash up to `count` of the bytes left by an earlier process. Returns whether all are hashed.

        Until then nothing can be appended.
        """

    def append(self, data: bytes) -> None:
        """Append bytes. Raises `DiskFull` or another `StorageError`."""

    def commit(self, sha256: str, size: int | None = None) -> bool:
        """Store the file durably if its checksum and size are right. Returns whether it is new.

        Otherwise raises `ChecksumMismatch` and stores nothing. Either way the spool is finished.
        """

    def abort(self) -> None:
        """Delete the received bytes. Does nothing to a finished spool."""

    def close(self) -> None:
        """Close the spool; the bytes stay, to be resumed. Does nothing to a finished spool."""


class IStoredFile(Protocol):
    """A verified, open file. Blocking."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    def read(self, offset: int, count: int) -> bytes:
        """Read `count` bytes from `offset` on; fewer only at the end of the file. Raises `StorageError`."""

    def again(self) -> "IStoredFile":
        """A second handle of the file, to be closed separately. Does not block."""

    def close(self) -> None:
        """Close the file. Idempotent."""


class IChecking(Protocol):
    """The verification of a file before it is served. Blocking."""

    def step(self, count: int) -> IStoredFile | None:
        """Verify up to `count` more bytes. Returns the open file once all are right, None until then.

        Raises `Damaged` if they are not; the file is in quarantine then, and missing.
        """

    def close(self) -> None:
        """Close the file, unless `step` has given it out. Idempotent."""


class IScrub(Protocol):
    """The slow verification of all files. Blocking."""

    @property
    def position(self) -> str:
        """The checksum of the last verified file; empty at the start of a round."""

    def step(self, count: int) -> tuple[list[str], bool]:
        """Verify about `count` more bytes.

        Returns the damaged files, now in quarantine, and whether the round is complete.
        """

    def close(self) -> None:
        """Close the current file; the scrub can be continued."""


class IFileStore(Protocol):
    """Files by their checksum. Blocking; one thread at a time."""

    @property
    def stored(self) -> int:
        """The number of stored files, as far as they are counted."""

    @property
    def stored_bytes(self) -> int:
        """The size of the counted files, in bytes."""

    @property
    def quarantined(self) -> int:
        """The number of damaged files in quarantine."""

    def sweep(self, keep: Callable[[str], bool]) -> int:
        """Delete unfinished uploads, and partial downloads that are not to be kept. Returns how many."""

    def count(self) -> list[str] | None:
        """Count the next part of the files, and give their checksums; None when all are counted."""

    def restart_count(self) -> None:
        """Restart the count."""

    def has(self, sha256: str) -> bool:
        """Whether the file is stored and not known to be damaged."""

    def receive(self) -> ISpool:
        """Start an upload whose checksum comes at its end."""

    def resume(self, sha256: str) -> ISpool:
        """Start or resume a download of the file with this checksum."""

    def check(self, sha256: str) -> IChecking | None:
        """Start verifying a file; None if it is not stored."""

    def scrub(self, position: str = "") -> IScrub:
        """Start verifying all files after this checksum."""

    def remove(self, sha256: str) -> None:
        """Delete a file, if it is stored."""


class IFileQueue(Protocol):
    """The names of files, the missing files, and the order of their downloads. Durable and blocking; one
    thread at a time. All times are in milliseconds.
    """

    def open(self) -> LogProgress:
        """Open the queue. Returns the position up to which the log was read."""

    def note(
        self,
        rows: Sequence[NamedFile],
        seen: LogProgress,
        *,
        now_ms: int,
        has: Callable[[str], bool],
        fetches: bool,
    ) -> None:
        """Apply rows in the order of the log, up to `seen`, in one transaction.

        A named file that the store lacks becomes missing, and with `fetches` it is queued.
        """

    def reset(self) -> None:
        """Delete all names: the log was replaced."""

    def follow(self, rule: Literal["eager", "lazy", "none"]) -> None:
        """Queue all missing files, only the demanded ones, or none."""

    def take(self, now_ms: int, limit: int) -> list[WantedFile]:
        """Take the next files to fetch, demanded ones first, then the oldest; they are in flight then."""

    def next_at(self) -> int | None:
        """When the next file that is not in flight is due; None if there is none."""

    def mark_arrived(self, sha256: str, now_ms: int) -> None:
        """Record that the file is stored."""

    def mark_failed(self, sha256: str, why: str, now_ms: int) -> None:
        """Record a failed download: the file is no longer in flight, and is retried later."""

    def release(self, sha256: str) -> None:
        """Take the file out of flight, with unknown outcome."""

    def demand(self, sha256: str, now_ms: int) -> bool:
        """Fetch the file soon, if it is missing and has a name. Returns whether it is."""

    def mark_lost(self, sha256: str, now_ms: int, *, fetches: bool) -> str | None:
        """Record that a stored file is gone. Returns one of its names; None if it has none."""

    def is_named(self, sha256: str) -> bool:
        """Whether the file has a name."""

    def is_missing(self, sha256: str) -> bool:
        """Whether the file has a name and is not stored."""

    def names_after(self, name: str, limit: int) -> list[NamedFile]:
        """The names after this one, in alphabetical order."""

    def missing(self, upto: int | None = None, limit: int = 1_000_000) -> list[MissingFile]:
        """Names of rows up to this serial whose files are not stored, oldest first."""

    def mark_stored(self, stored: Sequence[str], now_ms: int) -> None:
        """Record that these files are stored; those without a name may become garbage."""

    def garbage(self, before_ms: int, limit: int) -> list[str]:
        """Stored files that have had no name since this time."""

    def mark_removed(self, sha256: str) -> None:
        """Record that the file was deleted as garbage."""

    def remember(self, key: str, value: str) -> None:
        """Store a short text, if the queue exists."""

    def recall(self, key: str) -> str:
        """The stored text; empty if there is none."""

    def summary(self, failing: int) -> QueueSummary:
        """The counts, and at most this many of the failing files."""

    def close(self) -> None:
        """Close the queue. Idempotent."""
