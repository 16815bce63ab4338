"""Files by checksum: what keeps their bytes, what remembers which are wanted, and where they come from."""

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
    """There is no room for these bytes; nothing of them is kept."""


class ChecksumMismatch(StorageError):
    """These are not the bytes that were told: `found` is not `expected`. Each is a checksum, or a size."""

    def __init__(self, *, op: str, expected: str, found: str, why: str) -> None:
        super().__init__(op=op, why=why, retryable=True)
        self.expected = expected
        self.found = found


class Damaged(StorageError):
    """A file is not what it was; it is in quarantine now, and missing."""


class NamedFile(msgspec.Struct, frozen=True):
    """What a row of ``files`` says: since `serial` the name stands for these bytes, or for none."""

    name: str
    sha256: str | None
    size: int | None
    serial: int


class LogProgress(msgspec.Struct, frozen=True):
    """How far the log was looked through: up to `serial`, where it has this `digest`."""

    serial: int = 0
    digest: str = EMPTY

    @property
    def text(self) -> str:
        """As it is kept in a note; `read` reverses it."""
        return f"{self.serial} {self.digest}"

    @classmethod
    def read(cls, text: str) -> "LogProgress":
        """What a note says, the beginning if there is none."""
        serial, _, digest = text.partition(" ")
        return cls(int(serial), digest) if serial else cls()


class WantedFile(msgspec.Struct, frozen=True):
    """A file to be fetched; `tries` were in vain."""

    sha256: str
    size: int
    name: str
    serial: int
    demanded: bool
    tries: int


class MissingFile(msgspec.Struct, frozen=True):
    """A name whose bytes are not here."""

    name: str
    sha256: str


class FailingFile(msgspec.Struct, frozen=True):
    """A file that could not be fetched so far, why, and when it is tried again."""

    name: str
    sha256: str
    why: str
    tries: int
    next_at_ms: int
    since_ms: int


class QueueSummary(msgspec.Struct, frozen=True):
    """The queue in numbers: files `missing` here, those of them `wanted` (they are to be fetched), since when
    the oldest is missing, and the first of those that fail."""

    missing: int = 0
    wanted: int = 0
    failing_count: int = 0
    oldest_since_ms: int | None = None
    failing: Sequence[FailingFile] = ()
    first_missing: str = ""


class IFetchFile(Protocol):
    """Where a replica gets its files."""

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `on_chunk` with the bytes from `offset` on, to the end; what it returns is waited for.

        Raises a `ReplicationError` when they do not come, or not all of them; those given until then are
        good. Nothing here checks them.
        """

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Bring a file there: `read` gives so many of its `size` bytes from an offset on. It comes through so
        many (`hops`) daemons.

        Returns when they are kept there. Raises a `ReplicationError` when they are not, or nobody knows.
        """


class ISpool(Protocol):
    """Bytes that are coming in, on the disk but not yet kept. Blocking; one thread at a time."""

    @property
    def length(self) -> int:
        """How many bytes are here."""

    def rehash(self, count: int) -> bool:
        """Read up to `count` bytes of what an earlier life left; whether all of them are read now.

        Until it says so nothing can be appended.
        """

    def append(self, data: bytes) -> None:
        """Add these. Raises `DiskFull`, or another `StorageError`."""

    def commit(self, sha256: str, size: int | None = None) -> bool:
        """Keep them, durably, if these are their checksum and size; whether they are new here.

        Otherwise raises `ChecksumMismatch`, and nothing is kept. Either way it is over with this spool.
        """

    def abort(self) -> None:
        """Keep nothing. Harmless when it is over already."""

    def close(self) -> None:
        """Leave what is here for another time. Harmless when it is over already."""


class IStoredFile(Protocol):
    """A file that was found good, open. Blocking."""

    @property
    def size(self) -> int:
        """In bytes."""

    def read(self, offset: int, count: int) -> bytes:
        """So many bytes from there on, no fewer unless the file ends. Raises `StorageError`."""

    def again(self) -> "IStoredFile":
        """The same file, to be closed by somebody else. Does not block."""

    def close(self) -> None:
        """Let go. Harmless when repeated."""


class IChecking(Protocol):
    """A file that is being looked through, before it is served. Blocking."""

    def step(self, count: int) -> IStoredFile | None:
        """Look at up to `count` more bytes: the open file once all are good, None until then.

        Raises `Damaged` when they are not; it is in quarantine then, and missing.
        """

    def close(self) -> None:
        """Let go, unless the open file was handed out. Harmless when repeated."""


class IScrub(Protocol):
    """Goes through all files, slowly. Blocking."""

    @property
    def position(self) -> str:
        """The checksum of the last file that it has done with; empty at the beginning of a round."""

    def step(self, count: int) -> tuple[list[str], bool]:
        """Look at about `count` more bytes: which files are bad (in quarantine now), and whether a round is
        done."""

    def close(self) -> None:
        """Let go; it can be gone on with."""


class IFileStore(Protocol):
    """Bytes by their checksum. Blocking; one thread at a time."""

    @property
    def stored(self) -> int:
        """How many files are here, as far as they were counted."""

    @property
    def stored_bytes(self) -> int:
        """And how many bytes those have."""

    @property
    def quarantined(self) -> int:
        """How many bad files were put aside, and are still there."""

    def sweep(self, keep: Callable[[str], bool]) -> int:
        """Remove what an earlier life left half done, and partial downloads that nobody wants to `keep`."""

    def count(self) -> list[str] | None:
        """Count the next part of what is here, and give its checksums; None when all is counted."""

    def count_anew(self) -> None:
        """Begin the count again."""

    def has(self, sha256: str) -> bool:
        """Whether it is here, good as far as is known."""

    def receive(self) -> ISpool:
        """Bytes whose checksum is told at the end."""

    def resume(self, sha256: str) -> ISpool:
        """Bytes that are to have this checksum, with those that came earlier."""

    def check(self, sha256: str) -> IChecking | None:
        """Begin to look through a file; None if it is not here."""

    def scrub(self, position: str = "") -> IScrub:
        """Go through all files, from behind this place on."""

    def remove(self, sha256: str) -> None:
        """Delete a file, if it is here."""


class IFileQueue(Protocol):
    """Which names there are, which of their files are missing, and which are fetched when. Durable, blocking;
    one thread at a time. All times are in milliseconds.
    """

    def open(self) -> LogProgress:
        """Begin; how far the log was looked through."""

    def note(
        self,
        rows: Sequence[NamedFile],
        seen: LogProgress,
        *,
        now_ms: int,
        has: Callable[[str], bool],
        fetches: bool,
    ) -> None:
        """Take in rows in the order of the log, up to `seen`, in one transaction. What they need and the
        store has not is missing from now on; with `fetches` it is to be fetched."""

    def reset(self) -> None:
        """Forget all names: the log is another one."""

    def follow(self, rule: Literal["eager", "lazy", "none"]) -> None:
        """What is missing is to be fetched, or only what was demanded, or nothing."""

    def take(self, now_ms: int, limit: int) -> list[WantedFile]:
        """The next files to be fetched, in flight from now on: demanded ones first, then the oldest."""

    def next_at(self) -> int | None:
        """When the next file that is not in flight is due; None if there is none."""

    def arrived(self, sha256: str, now_ms: int) -> None:
        """It is here now, however it came."""

    def failed(self, sha256: str, why: str, now_ms: int) -> None:
        """It could not be fetched; it is no longer in flight, and tried again later."""

    def let_go(self, sha256: str) -> None:
        """It is no longer in flight, and nothing else is known."""

    def demand(self, sha256: str, now_ms: int) -> bool:
        """Fetch it soon, if a name refers to it and it is missing; whether that is so."""

    def lost(self, sha256: str, now_ms: int, *, fetches: bool) -> str | None:
        """It is not here, and nobody knew: a name that refers to it, None if there is none."""

    def is_named(self, sha256: str) -> bool:
        """Whether a name refers to it."""

    def is_missing(self, sha256: str) -> bool:
        """Whether a name refers to it and it is not here."""

    def names_after(self, name: str, limit: int) -> list[NamedFile]:
        """The next names, in their own order."""

    def missing(self, upto: int | None = None, limit: int = 1_000_000) -> list[MissingFile]:
        """Names whose bytes are not here, those of rows up to this serial, oldest first."""

    def found(self, stored: Sequence[str], now_ms: int) -> None:
        """These are in the store: none is missing, and what no name refers to can become garbage."""

    def garbage(self, before_ms: int, limit: int) -> list[str]:
        """Stored files that no name has referred to since then."""

    def removed(self, sha256: str) -> None:
        """This one is not in the store any more."""

    def remember(self, key: str, value: str) -> None:
        """Keep a small text, if anything is kept at all."""

    def recall(self, key: str) -> str:
        """What was kept; empty if nothing was."""

    def summary(self, failing: int) -> QueueSummary:
        """The numbers, and at most so many of those that fail."""

    def close(self) -> None:
        """Let go. Harmless when repeated."""
