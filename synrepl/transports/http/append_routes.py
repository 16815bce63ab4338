"""Handler of appends to one stream, and what all ways to append share: the checks, acks and forwarding."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType
from twisted.internet.defer import Deferred

from synrepl.base.history import Appended
from synrepl.base.response_errors import NotForwarded
from synrepl.base.rights import NAME_OWNERS, missing_right
from synrepl.errors import RowError
from synrepl.http_api.route import BAD_WRITER
from synrepl.http_api.routes import APPEND
from synrepl.replication.hooks import Posted, PostedPart
from synrepl.streams.stream import Stream
from synrepl.streams.writer import Writer
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
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


Appending = Deferred[list[Appended]]
"""An append that was started: it fires with the result of each part."""


@handles(APPEND)
async def append(call: Call, body: AppendBody) -> Appended:
    """Append facts of one stream; a replica forwards them to the primary, and waits until it has them."""
    context, name = call.context, call.path["stream"]
    stream = context.table[name]  # an unknown stream is refused first
    is_stored_here = not context.hooks.forwarding.is_active()
    writer, key = checked_names(body.writer, body.idempotency_key)
    if is_stored_here:
        check_new_writer(call, name, writer, context.log.positions(name))
    facts = await read_facts(call, name, body.facts)
    if is_stored_here:
        stored_as = Writer(name, writer or context.settings.instance_name)
        started = await start_append(
            call, [stored_as], key, lambda key: append_one(call, stored_as, facts, key, owner_of(call))
        )
        return (await started)[0]
    part = PostedPart(name, [bytes(fact) for fact in body.facts], writer)
    return await forward(call, [part], [(stream, facts)], key=key)


async def forward(
    call: Call,
    parts: Sequence[PostedPart],
    canonical: Iterable[tuple[Stream[Any], Sequence[bytes]]],
    *,
    key: str | None,
    is_batch: bool = False,
) -> Appended:
    """Send an append on to the primary, as it was posted, and wait until this replica has its facts.

    `canonical` are the facts of its parts in canonical form, with their streams: they name the files that it
    waits for, if the request asks for that.
    """
    context, query = call.context, call.query
    files: set[str] = set()
    if query["files"]:
        for stream, facts in canonical:
            files |= context.stored_bytes.named_by(stream, facts)
    via: str | None = query["via"]
    posted = Posted(
        parts=parts,
        is_batch=is_batch,
        key=key,
        owner=owner_of(call) if call.access.is_proven else None,
        files=files,
        hops=via.split(",") if via else (),
        query=_passed_on(call.request.uri),
        timeout=query["timeout"],
    )
    return await context.hooks.forwarding.forward(posted, context.publisher.waiters)


def refuse_on_replica(call: Call, way_out: str) -> None:
    """Raises `ApiError` if this daemon is a replica, which cannot forward this request."""
    hooks = call.context.hooks
    if hooks.forwarding.is_active():
        if (stopped := hooks.forwarding.refusal("")) is not None:
            raise stopped
        primary = str(hooks.role.primary)
        raise ApiError("not_primary", f"this daemon is a replica: {way_out}", moved_to=primary)


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
    call: Call, writers: Sequence[Writer], key: str | None, store: Callable[[str | None], Appending]
) -> Appending:
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
    call: Call, appending: Appending, all_acks: Sequence[Acks], writers: Sequence[Writer], key: str
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


def append_one(call: Call, writer: Writer, facts: Sequence[bytes], key: str | None, owner: str) -> Appending:
    """Append facts of one writer, for `start_append`."""
    appending = call.context.log.append(writer.stream, writer.name, facts, key=key, owner=owner)
    return appending.addCallback(lambda appended: [appended])


def owner_of(call: Call) -> str:
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


def _passed_on(uri: bytes) -> Sequence[tuple[bytes, bytes]]:
    """Return the query parameters that are sent on to the primary: all but those of this hop."""
    # Latin-1 maps any bytes to characters and back.
    text = uri.partition(b"?")[2].decode("latin-1")
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in parse_qsl(text, keep_blank_values=True, encoding="latin-1")
        if name not in {"timeout", "via", "owner"}
    ]
