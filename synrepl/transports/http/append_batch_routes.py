"""Handler of appends to several streams: each by itself, or all as one (`streams/atomic_appends.py`)."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType
from twisted.internet.defer import Deferred, DeferredList

from synrepl.base.history import Appended
from synrepl.http_api.routes import APPEND_BATCH
from synrepl.replication.hooks import PostedPart
from synrepl.storage.group_commit import parts_of
from synrepl.streams.atomic_appends import MAX_ATOMIC_FACTS
from synrepl.streams.writer import Writer
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.append_routes import (
    StreamAppend,
    check_new_writer,
    checked_names,
    forward,
    owner_of,
    read_facts,
    refuse_on_replica,
    start_append,
)
from synrepl.transports.http.call import Call, check_checksum
from synrepl.transports.http.handlers import handles
from synrepl.transports.http.large_body import MAX_FACTS, too_many_facts

MAX_STAGED_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a staged file; the same as the default limit of a posted body."""

MAX_ATOMIC_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of rows in an atomic batch: readers and replicas take it as a whole."""


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """A posted batch: `appends`, or `staged`, the checksum of an uploaded file with a body of `appends`.

    With `atomic` all of it is stored, or nothing.
    """

    appends: list[StreamAppend] | UnsetType = UNSET
    staged: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    atomic: bool = False


class BatchAnswer(msgspec.Struct, frozen=True):
    """The epoch of the log, and the result of each append, in order."""

    epoch: int
    appends: list[Appended]


_Append = tuple[str, str, list[bytes]]
"""The stream, the writer and the canonical facts of an append."""

_batch_decoder: Final = msgspec.json.Decoder(BatchBody)


@handles(APPEND_BATCH)
async def append_batch(call: Call, body: BatchBody) -> BatchAnswer:
    """Append facts of several streams and writers; return their results once all are stored.

    Every row is validated before anything is stored. Each append is atomic. With an idempotency key, each
    append is one part of it: a retry stores only the missing appends. A replica refuses. With `atomic` the
    whole batch is one append, with one key; a replica forwards it.
    """
    if not body.atomic:
        refuse_on_replica(
            call, "post the batch to the primary, each stream by itself, or the batch as one append (atomic)"
        )
    appends, requests, key = await _checked_batch(call, body)
    if body.atomic:
        return await _append_atomic(call, appends, requests, key or str(uuid4()))
    started = await start_append(
        call, _writers(requests), key, lambda key: Deferred.fromCoroutine(_append_parts(call, requests, key))
    )
    appended = await started
    return BatchAnswer(call.context.log.head.epoch, appended)


async def _checked_batch(
    call: Call, body: BatchBody
) -> tuple[Sequence[StreamAppend], list[_Append], str | None]:
    """Check a batch. Return its appends, as they were posted and as they are stored, and its key, if any.

    Raises `ApiError`. An atomic batch cannot be staged, and has limits of its own.
    """
    appends = body.appends
    if body.atomic and (appends is UNSET or body.staged is not UNSET):
        raise ApiError("bad_request", "an atomic batch needs appends; it cannot be staged")
    if (appends is UNSET) == (body.staged is UNSET):
        raise ApiError("bad_request", "a batch needs either appends or staged, not both")
    if isinstance(body.staged, str):
        staged = await _read_staged(call, body.staged)
        appends = (await call.api.decode_large(_batch_decoder, staged)).appends
    if not isinstance(appends, list):
        raise ApiError(
            "bad_request", f"the staged file {body.staged} has no `appends`, a list as in the body of a batch"
        )
    count = max(len(appends), sum(len(one.facts) for one in appends))
    if body.atomic and count > MAX_ATOMIC_FACTS:
        raise ApiError("too_large", f"an atomic batch may have {MAX_ATOMIC_FACTS} facts")
    if count > MAX_FACTS:
        raise too_many_facts()
    _, key = checked_names(UNSET, body.idempotency_key)
    requests = await _read_appends(call, appends)
    if body.atomic:
        _check_atomic(call, requests)
    return appends, requests, key


def _check_atomic(call: Call, requests: Sequence[_Append]) -> None:
    """Raises `ApiError` if these appends cannot be one."""
    for stream, _, _ in requests:
        if call.context.table[stream].ephemeral:
            why = f"{stream} is ephemeral: its facts are in memory, and cannot be part of an atomic batch"
            raise ApiError("bad_request", why)
    if sum(len(rows) for *_, facts in requests for rows in facts) > MAX_ATOMIC_BYTES:
        raise ApiError("too_large", f"the rows of an atomic batch may have {MAX_ATOMIC_BYTES} bytes")


async def _read_appends(call: Call, appends: Sequence[StreamAppend]) -> list[_Append]:
    """Return the stream, the writer and the canonical facts of each append. Raises `ApiError`."""
    instance, log = call.context.settings.instance_name, call.context.log
    requests: list[_Append] = []
    writers: dict[str, set[str]] = {}
    for one in appends:
        call.check_streams(one.stream)
        writer, _ = checked_names(one.writer, UNSET)
        if (known := writers.get(one.stream)) is None:
            known = writers[one.stream] = set(log.positions(one.stream))
        check_new_writer(call, one.stream, writer, known)
        facts = await read_facts(call, one.stream, one.facts)
        known.add(writer or instance)
        requests.append((one.stream, writer or instance, facts))
    return requests


async def _append_atomic(
    call: Call, appends: Sequence[StreamAppend], requests: Sequence[_Append], key: str
) -> BatchAnswer:
    """Append facts of several streams as one; a replica forwards them, and waits until it has them."""
    context = call.context
    if not context.hooks.forwarding.is_active():
        owner = owner_of(call)
        started = await start_append(
            call, _writers(requests), key, lambda _: context.log.append_atomic(requests, key=key, owner=owner)
        )
        appended = await started
        return BatchAnswer(context.log.head.epoch, appended)
    parts = [
        PostedPart(
            one.stream,
            [bytes(fact) for fact in one.facts],
            None if one.writer is UNSET else one.writer,
        )
        for one in appends
    ]
    canonical = [(context.table[stream], facts) for stream, _, facts in requests]
    forwarded = await forward(call, parts, canonical, key=key, is_batch=True)
    return BatchAnswer(context.log.head.epoch, parts_of(forwarded, [len(one.facts) for one in appends]))


async def _append_parts(call: Call, requests: Sequence[_Append], key: str | None) -> list[Appended]:
    """Append each of these by itself. Raises the error of the first one that fails, once all are done."""
    # Started together, so that they share a commit.
    results: list[Any] = await DeferredList(
        [
            call.context.log.append(*request, key=key, owner=call.access.name, part=part)
            for part, request in enumerate(requests, 1)
        ],
        consumeErrors=True,
    )
    for is_kept, result in results:
        if not is_kept:
            result.raiseException()
    return [result for _, result in results]


def _writers(requests: Sequence[_Append]) -> list[Writer]:
    return [Writer(stream, writer) for stream, writer, _ in requests]


async def _read_staged(call: Call, sha256: str) -> bytes:
    check_checksum(sha256)
    body = await call.context.stored_bytes.read_stored(sha256, MAX_STAGED_BYTES)
    if body is None:
        raise ApiError(
            "no_such_file", f"no staged file {sha256}: upload it with PUT /v1/files/sha256/{sha256}"
        )
    return body
