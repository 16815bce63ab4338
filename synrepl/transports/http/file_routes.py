"""Routes of files by checksum: upload and download."""

from typing import Any, Final

from twisted.logger import Logger

from synrepl.errors import ReplicationError
from synrepl.files import Files
from synrepl.files.file_check import StoredFile
from synrepl.streams import jsontext
from synrepl.transports.http.api_error import UPSTREAM_UNREACHABLE, ApiError, unreachable_error
from synrepl.transports.http.byte_ranges import Unsatisfiable, matches, read_range
from synrepl.transports.http.client_errors import ApiResponseError
from synrepl.transports.http.query import header, integer, is_checksum, seconds, text
from synrepl.transports.http.streaming import streaming
from synrepl.transports.http.uploads import Upload, upload_error

__all__ = ["FileRoutes"]

BLOCK: Final = 256 * 1024
"""Bytes per read."""
WAIT_SECONDS: Final = 10.0
MAX_WAIT_SECONDS: Final = 300.0
RETRY_SECONDS: Final = b"1"

MAX_HOPS: Final = 8
STORED_LOCALLY: Final = "the file is stored on this replica, but perhaps not on the primary: upload it again"


class FileRoutes:
    """Handles the requests; without `files`, all are refused."""

    _logger = Logger()

    def __init__(self, files: Files | None) -> None:
        self._files = files

    async def put(self, request: Any, sha256: str) -> bytes:
        """Store the uploaded file if its checksum matches; a replica forwards it to the primary."""
        files = self._store_for(sha256)
        hops = integer(request, "hops", 0)
        if hops > MAX_HOPS:
            why = "forwarding loop: none of the daemons on the way is the primary"
            raise ApiError(503, "upstream_away", why, retry_after=RETRY_SECONDS)
        upload = request.content
        if not isinstance(upload, Upload):
            raise ApiError(400, "bad_request", "the path must contain the checksum without escapes")
        try:
            is_new, size = await upload.keep(sha256)
        except ReplicationError as error:
            raise upload_error(error) or error from error
        try:
            await files.forward(sha256, hops)
        except ApiResponseError as error:
            if error.code == UPSTREAM_UNREACHABLE:  # from a replica on the way to the primary
                raise unreachable_error(f"{STORED_LOCALLY}: {error}") from error
            raise ApiError(502, "upstream_refused", f"{STORED_LOCALLY}: {error}") from error
        except ReplicationError as error:
            raise unreachable_error(f"{STORED_LOCALLY}: {error}") from error
        request.setResponseCode(201 if is_new else 200)
        request.setHeader(b"etag", _tag(sha256))
        return jsontext.dumps({"sha256": sha256, "size": size})

    async def get(self, request: Any, sha256: str) -> bytes | None:
        """Send a file or a range of it. The whole file is verified before the first byte is sent."""
        files = self._store_for(sha256)
        wait = (
            WAIT_SECONDS
            if text(request, "wait") is None
            else seconds(request, "wait", highest=MAX_WAIT_SECONDS)
        )
        file = await self._open(files, sha256, wait)
        try:
            return await self._send(request, files, file, sha256)
        finally:
            files.release(file)

    def _store_for(self, sha256: str) -> Files:
        if self._files is None:
            raise ApiError(404, "not_found", "this daemon stores no files")
        if not is_checksum(sha256):
            raise ApiError(400, "bad_checksum", "a checksum has 64 hexadecimal digits, in lower case")
        return self._files

    async def _open(self, files: Files, sha256: str, wait: float) -> StoredFile:
        file = await files.open(sha256)
        if file is not None:
            return file
        if not await files.is_named(sha256):
            raise ApiError(404, "no_such_file", f"no fact of the stream files names {sha256}")
        if files.is_replica:
            if await files.wait_for(sha256, wait) and (file := await files.open(sha256)) is not None:
                return file
            why = "it is being fetched"
        else:
            why = "it has not been uploaded"
        raise ApiError(503, "file_not_here", f"{sha256} is not stored yet: {why}", retry_after=RETRY_SECONDS)

    async def _send(self, request: Any, files: Files, file: StoredFile, sha256: str) -> bytes | None:
        request.setHeader(b"etag", _tag(sha256))
        request.setHeader(b"accept-ranges", b"bytes")
        if matches(header(request, "if-none-match"), sha256):
            request.setResponseCode(304)
            return None
        start, count = 0, file.size
        if request.method == b"GET" and header(request, "if-range") in {None, f'"{sha256}"'}:
            try:
                byte_range = read_range(header(request, "range"), file.size)
            except Unsatisfiable:
                content_range = b"bytes */%d" % file.size
                why = f"the file has {file.size} bytes"
                raise ApiError(416, "range_not_satisfiable", why, content_range=content_range) from None
            if byte_range is not None:
                start, count = byte_range
                request.setResponseCode(206)
                content_range = b"bytes %d-%d/%d" % (start, start + count - 1, file.size)
                request.setHeader(b"content-range", content_range)
        request.setHeader(b"content-type", b"application/octet-stream")
        # A browser must not interpret a file as a page of this site.
        request.setHeader(b"x-content-type-options", b"nosniff")
        request.setHeader(b"content-length", b"%d" % count)
        if request.method == b"GET":
            await self._write(request, files, file, start, count)
        return None

    async def _write(self, request: Any, files: Files, file: StoredFile, start: int, count: int) -> None:
        async with streaming(request, self._logger) as valve:
            while count > 0:
                data = await files.read(file, start, min(BLOCK, count))
                request.write(data)
                start += len(data)
                count -= len(data)
                await valve.wait_open()


def _tag(sha256: str) -> bytes:
    return b'"%b"' % sha256.encode("ascii")
