"""Handlers of files: upload and download by checksum, download by name, and the list of names."""

from functools import partial
from typing import Final, cast
from urllib.parse import quote

import msgspec
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from synrepl.base.gate import Gate
from synrepl.errors import ReplicationError
from synrepl.files.files import NO_SOURCE, Files
from synrepl.files.part import FilesPart
from synrepl.files.routes import GET_FILE, GET_FILE_BY_NAME, LIST_FILES, NAME_HEADER, PUT_FILE
from synrepl.files.store import StoredFile
from synrepl.files.uploads import Upload, is_upload
from synrepl.http_api.request_errors import HttpError
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call, check_checksum
from synrepl.transports.http.handlers import OwnBody, handles, takes_body
from synrepl.transports.http.headers import Unsatisfiable, header, matches, read_range
from synrepl.transports.http.site_context import SiteContext
from synrepl.wire.text import printable

BLOCK: Final = 256 * 1024
"""Bytes per read."""

MAX_HOPS: Final = 8
TOO_LARGE: Final = 413
STORED_LOCALLY: Final = "the file is stored on this replica, but perhaps not on the primary: upload it again"


class FileAnswer(msgspec.Struct, frozen=True):
    """A file, and its size in bytes."""

    sha256: str
    size: int


class FileEntry(msgspec.Struct, frozen=True):
    """A name, and the file to which it refers since the fact with this serial. `size` is in bytes."""

    name: str
    sha256: str
    size: int
    serial: int


class FilesAnswer(msgspec.Struct, frozen=True):
    """Names in the order of their UTF-8 bytes; `limited`: there may be more after the last one."""

    files: list[FileEntry]
    limited: bool


@takes_body(PUT_FILE)
def take_upload(context: SiteContext, uri: bytes) -> OwnBody | None:
    """Write the file to disk as it arrives."""
    part = _part(context)
    if part is None or not is_upload(uri):
        return None
    return OwnBody(part.max_bytes, partial(Upload, part.files))


@handles(PUT_FILE)
async def put(call: Call) -> FileAnswer:
    """Store the uploaded file if its checksum matches; a replica then sends it on towards the primary."""
    request, files, sha256, hops = call.request, _store(call), _checksum(call), call.query["hops"]
    if hops > MAX_HOPS:
        why = "the file was forwarded too often: none of the daemons on the way is the primary"
        raise ApiError("upstream_away", why)
    upload = request.content
    if not isinstance(upload, Upload):
        raise ApiError("bad_request", "the path must contain the checksum without escapes")
    is_new, size = await upload.keep(sha256)
    try:
        await files.forward(sha256, hops)
    except HttpError as error:
        code = "upstream_away" if error.retryable else "upstream_refused"
        # A replica on the way cannot reach the primary.
        code = error.code if error.code == "upstream_unreachable" else code
        code = "too_large" if error.status == TOO_LARGE else code
        raise ApiError(code, f"{STORED_LOCALLY}: {error}") from error
    except ReplicationError as error:
        raise ApiError("upstream_unreachable", f"{STORED_LOCALLY}: {error}") from error
    request.setResponseCode(201 if is_new else 200)
    request.setHeader(b"etag", _tag(sha256))
    return FileAnswer(sha256, size)


@handles(GET_FILE)
async def get(call: Call) -> None:
    """Send a file or a range of it. The whole file is verified first, but not again within a minute."""
    call.check_readable()
    call.check_held([call.route.stream])
    files = _store(call)
    await _answer(call, files, _checksum(call))


@handles(GET_FILE_BY_NAME)
async def get_by_name(call: Call) -> None:
    """Send the file to which the name refers now, as `get` does."""
    await call.read_your_writes()
    call.check_readable()
    call.check_held([call.route.stream])
    files, name = _store(call), call.path["name"]
    found = await files.find(name)
    if found is None or found.sha256 is None:
        raise _unknown_file(call, f"no fact of the stream files gives a file the name {printable(name)}")
    call.request.setHeader(NAME_HEADER.lower().encode(), quote(name).encode())
    await _answer(call, files, found.sha256)


@handles(LIST_FILES)
async def list_names(call: Call) -> FilesAnswer:
    """List the names that begin with a prefix."""
    await call.read_your_writes()
    call.check_readable()
    call.check_held([call.route.stream])
    limit = call.query["limit"]
    found = await _store(call).names_after(call.query["after"] or "", limit, call.query["prefix"] or "")
    files = [FileEntry(one.name, one.sha256 or "", one.size or 0, one.serial) for one in found]
    return FilesAnswer(files, limited=len(files) == limit)


def _part(context: SiteContext) -> FilesPart | None:
    return cast("FilesPart | None", context.rooms.get("files"))


def _store(call: Call) -> Files:
    part = _part(call.context)
    if part is None:
        raise ApiError("not_found", "this daemon stores no files")
    return part.files


def _checksum(call: Call) -> str:
    sha256 = call.path["sha256"]
    check_checksum(sha256)
    return sha256


def _unknown_file(call: Call, why: str) -> ApiError:
    if call.read_gate.filter.writers is not None:
        # This daemon holds only some writers: another writer may have named the file.
        return call.filtered_error(f"{why}; {call.read_gate.describe()}")
    return ApiError("no_such_file", why)


async def _answer(call: Call, files: Files, sha256: str) -> None:
    file = await _open(call, files, sha256)
    try:
        await _send(call, files, file, sha256)
    finally:
        files.release(file)


async def _open(call: Call, files: Files, sha256: str) -> StoredFile:
    file = await files.open(sha256)
    if file is not None:
        return file
    if not await files.is_named(sha256):
        raise _unknown_file(call, f"no fact of the stream files names {sha256}")
    why = "it has not been uploaded"
    if files.is_replica:
        is_here = await files.wait_for(sha256, call.query["wait"])
        if is_here and (file := await files.open(sha256)) is not None:
            return file
        why = "this replica has not fetched it yet" if files.has_source else NO_SOURCE
    raise ApiError("file_not_here", f"{sha256} is not stored yet: {why}")


async def _send(call: Call, files: Files, file: StoredFile, sha256: str) -> None:
    request = call.request
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
