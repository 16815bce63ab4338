"""Uploads: request bodies that are written to disk as they arrive."""

import re
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from synrepl.base.gate import Gate
from synrepl.base.tasks import Tasks
from synrepl.errors import ReplicationError
from synrepl.files.files import Files
from synrepl.files.store import Spool
from synrepl.transports.http.api_error import INTERNAL, ApiError, as_api_error
from synrepl.transports.http.http_channel import ApiChannel

MAX_BUFFERED_BYTES: Final = 1024 * 1024
"""Reading from the connection pauses when more than this many bytes wait to be written to disk."""

_path: Final = re.compile(rb"/v1/files/sha256/[0-9a-f]{64}(?:\?.*)?", re.DOTALL)


def is_upload(uri: bytes) -> bool:
    """Whether this is the URI of an upload: with the checksum unescaped in the path."""
    return _path.fullmatch(uri) is not None


class Upload:
    """The body of an upload, in place of Twisted's temporary file; `channel` pauses while the disk is slow.

    `keep` stores the file; without it, `close` discards everything. `failed` is called if writing fails.
    """

    _logger = Logger()

    def __init__(self, files: Files, channel: ApiChannel, failed: Callable[[ApiError], None]) -> None:
        self._files = files
        self._channel = channel
        self._failed = failed
        self._tasks = Tasks(self._logger, "upload")
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._length = 0
        self._is_paused = False
        self._is_closed = False
        self._spool: Spool | None = None
        self._idle = Gate()
        """Open while no data is being written to disk."""
        self.error: ReplicationError | None = None

    def write(self, data: bytes) -> None:
        """Append bytes; they are ignored once the upload has failed or is closed."""
        self._length += len(data)
        if self._is_closed or self.error is not None:
            return
        self._buffered.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self._channel.pause_body()
        self._start_writing()

    async def keep(self, sha256: str) -> tuple[bool, int]:
        """Store the file; return whether it is new, and its size in bytes. Raises `ReplicationError`."""
        self._start_writing()
        await self._idle.wait_open()
        if self.error is not None:
            raise self.error
        assert self._spool is not None
        spool, self._spool = self._spool, None
        try:
            return await self._files.keep(spool, sha256), self._length
        except CancelledError:
            # It may be stored already, which is harmless.
            self._files.discard(spool)
            raise

    def close(self) -> None:
        """Discard the upload."""
        if not self._is_closed:
            self._is_closed = True
            self._buffered.clear()
            self._tasks.cancel_all()
            self._discard()

    # Methods that Twisted calls on a request's body.

    def tell(self) -> int:
        return self._length

    def seek(self, offset: int, whence: int = 0) -> int:
        return offset

    def read(self, count: int = -1) -> bytes:
        return b""

    def truncate(self, size: int = 0) -> int:
        """Discard the upload: it exceeds the limit."""
        self.close()
        return size

    def _start_writing(self) -> None:
        if self._idle.is_open and (self._buffered or self._spool is None) and self.error is None:
            self._idle.close()
            self._tasks.start(self._write(), "writing an upload")

    async def _write(self) -> None:
        try:
            if self._spool is None:
                self._spool = await self._files.receive()
            while self._buffered:
                data = b"".join(self._buffered)
                self._buffered.clear()
                self._buffered_bytes = 0
                self._resume()
                await self._files.append(self._spool, data)
        except ReplicationError as error:
            self._fail(error)
        finally:
            self._resume()
            self._idle.open()

    def _fail(self, error: ReplicationError) -> None:
        self.error = error
        self._buffered.clear()
        self._discard()
        self._failed(as_api_error(error) or INTERNAL)

    def _discard(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            self._files.discard(spool)

    def _resume(self) -> None:
        if self._is_paused and not self._is_closed:
            self._is_paused = False
            self._channel.resume_body()
