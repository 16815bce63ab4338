"""Batch appends: facts of several streams and writers in one request, from its body or a staged file."""

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from twisted.internet.defer import DeferredList

from synrepl.ports.access import Access
from synrepl.ports.interfaces import Appended
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.append_body import (
    AppendBody,
    check_append,
    check_writer,
    decode_body,
    read_facts,
)
from synrepl.transports.http.authorization import check_streams
from synrepl.transports.http.query import is_checksum
from synrepl.transports.http.services import Services

if TYPE_CHECKING:
    from synrepl.files import Files

__all__ = ["BatchAnswer", "BatchBody", "append_all"]

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a staged file; the same as for a posted body."""


class StreamAppend(msgspec.Struct, forbid_unknown_fields=True):
    """Facts of one stream and writer."""

    stream: str
    facts: list[msgspec.Raw]
    writer: str | UnsetType = UNSET


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """A posted batch: `appends`, or `staged`, the checksum of a file with such a body."""

    appends: list[StreamAppend] | UnsetType = UNSET
    staged: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


class BatchAnswer(msgspec.Struct, frozen=True):
    """The epoch, and the results of the appends."""

    epoch: int
    appends: list[Appended]


_decoder: Final = msgspec.json.Decoder(BatchBody)


async def append_all(batch: BatchBody, services: Services, access: Access) -> BatchAnswer:
    """Append a batch; return the result of each append once all are durable.

    Every row is validated before anything is stored. Each append is atomic and has its own idempotency key,
    derived from the request's: a retry stores only the missing appends. Raises `ApiError`.
    """
    log = services.log
    appends, key = batch.appends, batch.idempotency_key
    if (appends is UNSET) == (batch.staged is UNSET):
        raise ApiError("bad_request", "a batch needs either appends or staged, not both")
    if isinstance(batch.staged, str):
        appends = decode_body(_decoder, await _read_staged(services.files, batch.staged)).appends
    requests: list[tuple[str, str, list[bytes], str | None]] = []
    writers: dict[str, set[str]] = {}
    for number, append in enumerate(appends if isinstance(appends, list) else []):
        check_streams(access, append.stream)
        append_key = UNSET if key is UNSET else f"{key}/{number}"
        checked = check_append(AppendBody(append.facts, append.writer, append_key))
        if (known := writers.get(append.stream)) is None:
            known = writers[append.stream] = set(log.positions(append.stream))
        check_writer(checked, append.stream, known, services.settings.instance_name)
        facts = await read_facts(services.table[append.stream], checked, services.clock)
        writer = append.writer if isinstance(append.writer, str) else services.settings.instance_name
        known.add(writer)
        requests.append((append.stream, writer, facts, append_key if isinstance(append_key, str) else None))
    # Started together, so that they share a commit.
    results: list[Any] = await DeferredList(
        [log.append(stream, writer, facts, key=append_key) for stream, writer, facts, append_key in requests],
        consumeErrors=True,
    )
    for is_kept, result in results:
        if not is_kept:
            result.raiseException()
    kept: list[Appended] = [result for _, result in results]
    return BatchAnswer(log.epoch, kept)


async def _read_staged(files: "Files | None", sha256: str) -> bytes:
    """Read the staged file with this checksum."""
    if not is_checksum(sha256):
        raise ApiError("bad_checksum", "a checksum has 64 hexadecimal digits, in lower case")
    file = None if files is None else await files.open(sha256)
    if files is None or file is None:
        raise ApiError(
            "no_such_file", f"no staged file {sha256}: upload it with PUT /v1/files/sha256/{sha256}"
        )
    try:
        if file.size > MAX_BYTES:
            raise ApiError("too_large", f"the staged file has {file.size} bytes; the limit is {MAX_BYTES}")
        return await files.read(file, 0, file.size)
    finally:
        files.release(file)
