"""Handlers of files by checksum: upload and download."""

from typing import Final

import msgspec
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from synrepl.errors import ReplicationError
from synrepl.files.file_check import StoredFile
from synrepl.files.files import Files
from synrepl.ports.gate import Gate
from synrepl.ports.response_errors import ApiResponseError
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call, check_checksum
from synrepl.transports.http.headers import Unsatisfiable, header, matches, read_range
from synrepl.transports.http.uploads import Upload

BLOCK: Final = 256 * 1024
"""Bytes per read."""

MAX_HOPS: Final = 8
STORED_LOCALLY: Final = "the file is stored on this replica, but perhaps not on the primary: upload it again"


class FileAnswer(msgspec.Struct, frozen=True):
    """A file, and its size in bytes."""

    sha256: str
    size: int


async def put(call: Call) -> FileAnswer:
    """Store the uploaded file if its checksum matches; a replica then sends it on towards the primary."""
    request, files, sha256, hops = call.request, _store(call), call.path["sha256"], call.query["hops"]
    if hops > MAX_HOPS:
        why = "the file was forwarded too often: none of the daemons on the way is the primary"
        raise ApiError("upstream_away", why)
    upload = request.content
    if not isinstance(upload, Upload):
        raise ApiError("bad_request", "the path must contain the checksum without escapes")
    is_new, size = await upload.keep(sha256)
    try:
        await files.forward(sha256, hops)
    except ApiResponseError as error:
        code = "upstream_away" if error.retryable else "upstream_refused"
        # A replica on the way cannot reach the primary.
        code = error.code if error.code == "upstream_unreachable" else code
        raise ApiError(code, f"{STORED_LOCALLY}: {error}") from error
    except ReplicationError as error:
        raise ApiError("upstream_unreachable", f"{STORED_LOCALLY}: {error}") from error
    request.setResponseCode(201 if is_new else 200)
    request.setHeader(b"etag", _tag(sha256))
    return FileAnswer(sha256, size)


async def get(call: Call) -> None:
    """Send a file or a range of it. The whole file is verified first, but not again within a minute."""
    call.check_readable()
    call.check_held([call.route.stream])
    files = _store(call)
    file = await _open(call, files)
    try:
        await _send(call, files, file)
    finally:
        files.release(file)


def _store(call: Call) -> Files:
    if call.services.files is None:
        raise ApiError("not_found", "this daemon stores no files")
    check_checksum(call.path["sha256"])
    return call.services.files


async def _open(call: Call, files: Files) -> StoredFile:
    sha256, holdings = call.path["sha256"], call.holdings
    file = await files.open(sha256)
    if file is not None:
        return file
    if not await files.is_named(sha256):
        why = f"no fact of the stream files names {sha256}"
        if holdings.filter.writers is not None:
            # This daemon holds only some writers: another writer may have named the file.
            raise call.filtered_error(f"{why}; {holdings.describe()}")
        raise ApiError("no_such_file", why)
    why = "it has not been uploaded"
    if files.is_replica:
        is_here = await files.wait_for(sha256, call.query["wait"])
        if is_here and (file := await files.open(sha256)) is not None:
            return file
        why = "this replica has not fetched it yet"
    raise ApiError("file_not_here", f"{sha256} is not stored yet: {why}")


async def _send(call: Call, files: Files, file: StoredFile) -> None:
    request, sha256 = call.request, call.path["sha256"]
    request.setHeader(b"etag", _tag(sha256))
    request.setHeader(b"accept-ranges", b"bytes")
    if matches(header(request, "if-none-match"), sha256):
        request.setResponseCode(304)
        return
    start, count = 0, file.size
    if request.method == b"GET" and header(request, "if-range") in {None, f'"{sha256}"'}:
        try:
            byte_range = read_range(header(request, "range"), file.size)
        except Unsatisfiable:
            size = {b"content-range": b"bytes */%d" % file.size}
            why = f"the range is outside the file, which has {file.size} bytes"
            raise ApiError("range_not_satisfiable", why, headers=size) from None
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
        await _write(call, files, file, start, count)


@implementer(IPushProducer)
class _Valve(Gate):
    """A gate that is open while the transport accepts data."""

    pauseProducing = Gate.close
    resumeProducing = Gate.open

    def stopProducing(self) -> None:
        """Do nothing: the handler is cancelled when the client disconnects."""


async def _write(call: Call, files: Files, file: StoredFile, start: int, count: int) -> None:
    valve = _Valve()
    async with call.streaming(valve):
        while count > 0:
            data = await files.read(file, start, min(BLOCK, count))
            call.request.write(data)
            start += len(data)
            count -= len(data)
            await valve.wait_open()


def _tag(sha256: str) -> bytes:
    return b'"%b"' % sha256.encode("ascii")
