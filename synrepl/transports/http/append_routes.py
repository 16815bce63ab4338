"""Handlers of appends: to one stream, or to several together."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType
from twisted.internet.defer import Deferred, DeferredList

from synrepl.base.history import Appended
from synrepl.base.response_errors import NotForwarded
from synrepl.base.rights import NAME_OWNERS, missing_right
from synrepl.errors import RowError
from synrepl.http_api.route import BAD_WRITER
from synrepl.http_api.routes import APPEND, APPEND_BATCH
from synrepl.replication.hooks import Posted, PostedPart
from synrepl.storage.group_commit import parts_of
from synrepl.streams.atomic_appends import MAX_ATOMIC_FACTS
from synrepl.streams.writer import Writer
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call, check_checksum
from synrepl.transports.http.handlers import handles
from synrepl.transports.http.large_body import LARGE_BYTES, MAX_FACTS, too_many_facts
from synrepl.wire.acks import NO_ACKS, Acks
from synrepl.wire.text import is_name

FACTS_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 128 * 1024
"""After validating so many facts, or bytes of them, others have a turn: about five milliseconds of work."""

MAX_POSTED_FACT: Final = 4 * 1024 * 1024
"""The most bytes of a posted fact. It is validated and sent in one piece, which takes time."""

MAX_KEY: Final = 255

MAX_WRITERS: Final = 1_000
"""In a stream with this many writers, a post cannot add another. Every follower learns each writer, and those
of kept streams are never removed.
"""

MAX_STAGED_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a staged file; the same as the default limit of a posted body."""


class AppendBody(msgspec.Struct, forbid_unknown_fields=True):
    """A posted body: `facts` is a list of facts, each an unparsed JSON array of rows."""

    facts: list[msgspec.Raw]
    writer: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


class StreamAppend(msgspec.Struct, forbid_unknown_fields=True):
    """Facts of one stream and writer."""

    stream: str
    facts: list[msgspec.Raw]
    writer: str | UnsetType = UNSET


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


MAX_ATOMIC_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of rows in an atomic batch: readers and replicas take it as a whole."""

_Append = tuple[str, str, list[bytes]]
"""The stream, the writer and the canonical facts of an append."""

_Appending = Deferred[list[Appended]]
"""An append that was started: it fires with the result of each part."""

_batch_decoder: Final = msgspec.json.Decoder(BatchBody)


@handles(APPEND)
async def append(call: Call, body: AppendBody) -> Appended:
    """Append facts of one stream; a replica forwards them to the primary, and waits until it has them."""
    context, name = call.context, call.path["stream"]
    stream = context.table[name]  # an unknown stream is refused first
    forwarding = context.hooks.forwarding
    is_stored_here = not forwarding.is_active()
    writer, key = checked_names(body.writer, body.idempotency_key)
    if is_stored_here:
        check_new_writer(call, name, writer, context.log.positions(name))
    facts = await read_facts(call, name, body.facts)
    if is_stored_here:
        stored_as = Writer(name, writer or context.settings.instance_name)
        started = await start_append(
            call, [stored_as], key, lambda key: append_one(call, stored_as, facts, key, _owner(call))
        )
        return (await started)[0]
    posted = Posted(
        parts=[PostedPart(name, [bytes(fact) for fact in body.facts], writer)],
        key=key,
        files=context.stored_bytes.named_by(stream, facts) if call.query["files"] else (),
        **_forwarding(call),
    )
    return await forwarding.forward(posted, context.publisher.waiters)


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


def refuse_on_replica(call: Call, way_out: str) -> None:
    """Raises `ApiError` if this daemon is a replica, which cannot forward this request."""
    hooks = call.context.hooks
    if hooks.forwarding.is_active():
        if (stopped := hooks.forwarding.refusal("")) is not None:
            raise stopped
        primary = str(hooks.role.primary)
        raise ApiError("not_primary", f"this daemon is a replica: {way_out}", moved_to=primary)


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
    context, table = call.context, call.context.table
    forwarding = context.hooks.forwarding
    if not forwarding.is_active():
        owner = _owner(call)
        started = await start_append(
            call, _writers(requests), key, lambda _: context.log.append_atomic(requests, key=key, owner=owner)
        )
        appended = await started
        return BatchAnswer(context.log.head.epoch, appended)
    waited = requests if call.query["files"] else ()
    parts = [
        PostedPart(
            one.stream,
            [bytes(fact) for fact in one.facts],
            None if one.writer is UNSET else one.writer,
        )
        for one in appends
    ]
    posted = Posted(
        parts=parts,
        is_batch=True,
        key=key,
        files=frozenset[str]().union(
            *(context.stored_bytes.named_by(table[stream], facts) for stream, _, facts in waited)
        ),
        **_forwarding(call),
    )
    forwarded = await forwarding.forward(posted, context.publisher.waiters)
    return BatchAnswer(forwarded.epoch, parts_of(forwarded, [len(one.facts) for one in appends]))


def _forwarding(call: Call) -> dict[str, Any]:
    """Return what a replica needs to forward a write, whatever is in it."""
    via: str | None = call.query["via"]
    return {
        "owner": _owner(call) if call.access.is_proven else None,
        "hops": via.split(",") if via else (),
        "query": _passed_on(call.request.uri),
        "timeout": call.query["timeout"],
    }


def checked_names(writer: str | UnsetType, key: str | UnsetType) -> tuple[str | None, str | None]:
    """Return the writer and the idempotency key, None where absent. Raises `ApiError`."""
    if writer is not UNSET and not is_name(writer):
        raise ApiError("bad_writer", BAD_WRITER)
    if key is not UNSET and not (0 < len(key) <= MAX_KEY and key.isprintable()):
        raise ApiError("bad_request", f"idempotency_key must have 1 to {MAX_KEY} printable characters")
    return None if writer is UNSET else writer, None if key is UNSET else key


def _checked_acks(call: Call, stream: str) -> Acks:
    """Return whose acknowledgements an append to this stream waits for. Raises `ApiError` or `NotForwarded`.

    The request decides, and without it the setting, which concerns only what is kept.
    """
    asked: Acks | None = call.query["acks"]
    is_ephemeral = call.context.table[stream].ephemeral
    acknowledgements = call.context.hooks.acknowledgements
    if asked is None:
        asked = NO_ACKS if is_ephemeral else acknowledgements.default(stream)
    if asked.number:
        if is_ephemeral:
            raise ApiError("bad_request", f"acks: {stream} is ephemeral, and no copy has it on disk")
        acknowledgements.check(asked)
    return asked


async def start_append(
    call: Call, writers: Sequence[Writer], key: str | None, store: Callable[[str | None], _Appending]
) -> _Appending:
    """Promise the acknowledgements for which an append waits, and start it, by `store` with its key.

    `writers` are those of its parts, in order. The Deferred fires with their results once replicas have the
    facts, and fails with `NotForwarded` at the request's time-out. Raises as `_checked_acks` does.
    """
    all_acks = [_checked_acks(call, writer.stream) for writer in writers]
    if not any(acks.number for acks in all_acks):
        return store(key)
    for acks in dict.fromkeys(all_acks):
        if acks.number:
            await call.context.hooks.acknowledgements.promise(acks)
    key = key or str(uuid4())  # whoever must ask again needs one
    return Deferred.fromCoroutine(_acknowledged(call, store(key), all_acks, writers, key))


async def _acknowledged(
    call: Call, appending: _Appending, all_acks: Sequence[Acks], writers: Sequence[Writer], key: str
) -> list[Appended]:
    appended = await appending
    acknowledgements, clock = call.context.hooks.acknowledgements, call.context.clock
    until = clock.seconds() + call.query["timeout"]
    for acks, writer, one in zip(all_acks, writers, appended, strict=True):
        if not acks.number or one.first_serial is None:
            continue
        serial = one.first_serial + len(one.tokens) - 1
        try:
            await acknowledgements.wait(acks, writer, serial, max(until - clock.seconds(), 0.001))
        except NotForwarded as error:
            error.more["idempotency_key"] = key
            raise
    return appended


def append_one(call: Call, writer: Writer, facts: Sequence[bytes], key: str | None, owner: str) -> _Appending:
    """Append facts of one writer, for `start_append`."""
    appending = call.context.log.append(writer.stream, writer.name, facts, key=key, owner=owner)
    return appending.addCallback(lambda appended: [appended])


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


def _owner(call: Call) -> str:
    """Return the owner of the request's idempotency key: the peer, or the one for which a replica forwards.

    A replica that may administer is believed. For another one the owner is its own name and the named one,
    separated by a space, which the name of a key cannot have: so it cannot use up the keys of others.
    """
    access, named = call.access, call.query["owner"]
    if named is None:
        return access.name
    if missing_right(access, NAME_OWNERS):
        return f"{access.name} {named}"
    return str(named)


def check_new_writer(call: Call, stream: str, writer: str | None, known: Collection[str]) -> None:
    """Raises `ApiError` if this writer would exceed the stream's limit of writers.

    `known` are the stream's writers. This daemon's own instance may always write.
    """
    if writer in (None, call.context.settings.instance_name) or writer in known or len(known) < MAX_WRITERS:
        return
    why = (
        f"{stream} has {len(known)} writers, the limit is {MAX_WRITERS}, and {writer} would be one more."
        " Post under a name that the stream has, or without a writer; keep a process's name over restarts"
    )
    raise ApiError("too_many_writers", why)


async def read_facts(call: Call, name: str, posted: Sequence[msgspec.Raw]) -> list[bytes]:
    """Return the facts of a stream in canonical form.

    Raises `ApiError` for the first invalid row, and for a fact that is too large to send to replicas.
    """
    stream = call.context.table[name]
    facts: list[bytes] = []
    waiting = 0
    if len(posted) > MAX_FACTS:
        raise too_many_facts()
    for raw in posted:
        waiting += len(raw)
        if len(facts) % FACTS_AT_ONCE == FACTS_AT_ONCE - 1 or waiting > BYTES_AT_ONCE:
            waiting = len(raw)
            await call.api.queue.turn()
        _check_size(len(facts), len(raw))
        validate = partial(stream.canonical_fact, bytes(raw))
        try:
            is_large = len(raw) > LARGE_BYTES
            fact = await call.context.thread.run(validate) if is_large else validate()
        except RowError as error:
            why = f"fact {len(facts)}, row {error.index}: {error.why}"
            raise ApiError("bad_row", why) from error
        # Rows grow where fields are filled in.
        _check_size(len(facts), len(fact))
        facts.append(fact)
    return facts


def _check_size(index: int, size: int) -> None:
    if size > MAX_POSTED_FACT:
        why = f"fact {index} is too large: {size} bytes; the limit is {MAX_POSTED_FACT}"
        raise ApiError("too_large", why)


async def _read_staged(call: Call, sha256: str) -> bytes:
    check_checksum(sha256)
    body = await call.context.stored_bytes.read_stored(sha256, MAX_STAGED_BYTES)
    if body is None:
        raise ApiError(
            "no_such_file", f"no staged file {sha256}: upload it with PUT /v1/files/sha256/{sha256}"
        )
    return body


def _passed_on(uri: bytes) -> Sequence[tuple[bytes, bytes]]:
    """Return the query parameters that are sent on to the primary: all but those of this hop."""
    # Latin-1 maps any bytes to characters and back.
    text = uri.partition(b"?")[2].decode("latin-1")
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in parse_qsl(text, keep_blank_values=True, encoding="latin-1")
        if name not in {"timeout", "via", "owner"}
    ]
