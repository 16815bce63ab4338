"""Facts of several streams and writers in one request, in their order; perhaps from bytes that were brought
before, so that what many have brought becomes facts at one word."""

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from twisted.internet.defer import DeferredList

from synrepl.ports.access import Access
from synrepl.ports.interfaces import Appended, IClock
from synrepl.storage import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.append_body import AppendBody, check_posted, check_writer, decoded, read_facts
from synrepl.transports.http.authorization import check_streams
from synrepl.transports.http.query import is_checksum

if TYPE_CHECKING:
    from synrepl.replication.files import Files

__all__ = ["append_all"]

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of what was brought before; as of a body that is posted."""


class _StreamAppend(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    facts: list[msgspec.Raw]
    writer: str | UnsetType = UNSET


class _BatchAppend(msgspec.Struct, forbid_unknown_fields=True):
    appends: list[_StreamAppend] | UnsetType = UNSET
    staged: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


_decoder: Final = msgspec.json.Decoder(_BatchAppend)


async def append_all(
    body: bytes,
    *,
    log: Log,
    table: StreamTable,
    files: "Files | None",
    clock: IClock,
    instance: str,
    access: Access,
) -> bytes:
    """What each append became, when all are durable. Nothing is stored unless all rows are right.

    Each append is kept whole or not at all, and has a key of its own made of the request's: asked again, the
    request stores what is not stored yet. Raises `ApiError`.
    """
    posted = decoded(_decoder, body)
    appends, key = posted.appends, posted.idempotency_key
    if (appends is UNSET) == (posted.staged is UNSET):
        raise ApiError(400, "bad_request", "a request has appends, or says where they are staged")
    if isinstance(posted.staged, str):
        appends = decoded(_decoder, await _staged(files, posted.staged)).appends
    asked: list[tuple[str, str, list[bytes], str | None]] = []
    writers: dict[str, set[str]] = {}
    for number, append in enumerate(appends if isinstance(appends, list) else []):
        check_streams(access, append.stream)
        its_key = UNSET if key is UNSET else f"{key}/{number}"
        one = check_posted(AppendBody(append.facts, append.writer, its_key))
        if (known := writers.get(append.stream)) is None:
            known = writers[append.stream] = set(log.positions(append.stream))
        check_writer(one, append.stream, known, instance)
        facts = await read_facts(table[append.stream], one, clock)
        writer = append.writer if isinstance(append.writer, str) else instance
        known.add(writer)
        asked.append((append.stream, writer, facts, its_key if isinstance(its_key, str) else None))
    # All at once: they wait for the same commit.
    answers: list[Any] = await DeferredList(
        [log.append(stream, writer, facts, key=its_key) for stream, writer, facts, its_key in asked],
        consumeErrors=True,
    )
    for is_kept, answer in answers:
        if not is_kept:
            answer.raiseException()
    kept: list[Appended] = [answer for _, answer in answers]
    return msgspec.json.encode({"epoch": log.epoch, "appends": kept})


async def _staged(files: "Files | None", sha256: str) -> bytes:
    """What was brought under this checksum."""
    if not is_checksum(sha256):
        raise ApiError(400, "bad_checksum", "a checksum is 64 hexadecimal digits, in lower case")
    file = None if files is None else await files.open(sha256)
    if files is None or file is None:
        raise ApiError(404, "no_such_file", f"{sha256} is not here; bring it with PUT /v1/files/sha256")
    try:
        if file.size > MAX_BYTES:
            raise ApiError(413, "too_large", f"what is staged has up to {MAX_BYTES} bytes, not {file.size}")
        return await files.read(file, 0, file.size)
    finally:
        files.release(file)
