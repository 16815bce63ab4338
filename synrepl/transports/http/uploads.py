"""A body that goes to the disk while it comes in, with little of it in memory."""

import re
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from synrepl.errors import ReplicationError
from synrepl.ports.files import ChecksumMismatch, DiskFull, ISpool
from synrepl.ports.tasks import Tasks
from synrepl.replication.files import Files
from synrepl.transports.http.api_error import INTERNAL, ApiError, as_api_error

__all__ = ["Upload", "refused_upload", "uploaded"]

HELD_BYTES: Final = 1024 * 1024
"""Bytes that wait for the disk before the connection is read no further."""

_place: Final = re.compile(rb"/v1/files/sha256/[0-9a-f]{64}(?:\?.*)?", re.DOTALL)


def uploaded(method: bytes, uri: bytes) -> bool:
    """Whether a request brings a file."""
    return method == b"PUT" and _place.fullmatch(uri) is not None


class Upload:
    """What a request writes its body to, in place of Twisted's own file; `transport` waits for the disk.

    Nothing is kept until `keep`; without it, nothing remains after `close`. `failed` is called when no
    more of it is wanted.
    """

    _logger = Logger()

    def __init__(self, files: Files, transport: Any, failed: Callable[[ApiError], None]) -> None:
        self._files = files
        self._transport = transport
        self._failed = failed
        self._tasks = Tasks(self._logger, "upload")
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._length = 0
        self._is_paused = False
        self._is_closed = False
        self._is_writing = False
        self._spool: ISpool | None = None
        self._idle: Deferred[None] | None = None
        self.error: ReplicationError | None = None

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self._length += len(data)
        if self._is_closed or self.error is not None:
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pauseProducing()
        self._begin()

    async def keep(self, sha256: str) -> tuple[bool, int]:
        """Keep all that came, if this is its checksum: whether it is new, and its size in bytes."""
        self._begin()
        if self._is_writing:
            self._idle = Deferred()
            await self._idle
        if self.error is not None:
            raise self.error
        assert self._spool is not None
        spool, self._spool = self._spool, None
        try:
            return await self._files.keep(spool, sha256), self._length
        except CancelledError:
            # It may be kept by then, which does no harm.
            self._files.discard(spool)
            raise

    def close(self) -> None:
        """Nobody wants it any more."""
        if not self._is_closed:
            self._is_closed = True
            self._held.clear()
            self._tasks.cancel_all()
            self._discard()

    # What Twisted does with the body of a request.

    def tell(self) -> int:
        """How much there is."""
        return self._length

    def seek(self, offset: int, whence: int = 0) -> int:
        """Nobody reads it from here."""
        return offset

    def read(self, count: int = -1) -> bytes:
        """Nobody reads it from here."""
        return b""

    def truncate(self, size: int = 0) -> int:
        """It was too much: nothing of it counts."""
        self.close()
        return size

    def _begin(self) -> None:
        if not self._is_writing and (self._held or self._spool is None) and self.error is None:
            self._is_writing = True
            self._tasks.start(self._write(), "writing an upload")

    async def _write(self) -> None:
        try:
            if self._spool is None:
                self._spool = await self._files.receive()
            while self._held:
                data = b"".join(self._held)
                self._held.clear()
                self._held_bytes = 0
                self._resume()
                await self._files.append(self._spool, data)
        except ReplicationError as error:
            self._give_up(error)
        finally:
            self._is_writing = False
            self._resume()
            idle, self._idle = self._idle, None
            if idle is not None and not idle.called:
                idle.callback(None)

    def _give_up(self, error: ReplicationError) -> None:
        self.error = error
        self._held.clear()
        self._discard()
        self._failed(refused_upload(error) or INTERNAL)

    def _discard(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            self._files.discard(spool)

    def _resume(self) -> None:
        if self._is_paused and not self._is_closed:
            self._is_paused = False
            self._transport.resumeProducing()


def refused_upload(error: ReplicationError) -> ApiError | None:
    """How it is told that an upload failed."""
    match error:
        case ChecksumMismatch():
            more = {"expected": error.expected, "found": error.found}
            return ApiError(400, "checksum_mismatch", f"{error.why}; nothing was kept", more=more)
        case DiskFull():
            return ApiError(507, "disk_full", str(error))
    return as_api_error(error)
