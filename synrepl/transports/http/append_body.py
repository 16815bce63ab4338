"""Parsing and validation of posted facts."""

from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from twisted.internet.task import deferLater

from synrepl.errors import RowError
from synrepl.http_api.kinds import BAD_WRITER
from synrepl.ports.interfaces import IClock
from synrepl.streams.stream import Stream
from synrepl.transports.http.api_error import ApiError
from synrepl.wire.blocks import MAX_FACT
from synrepl.wire.text import is_name

__all__ = [
    "MAX_WRITERS",
    "AppendBody",
    "check_append",
    "check_writer",
    "decode_body",
    "read_facts",
]

T = TypeVar("T")

FACTS_AT_ONCE: Final = 1_000
"""Facts validated before control returns to the reactor: about five milliseconds of work."""

MAX_KEY: Final = 255

MAX_WRITERS: Final = 1_000
"""Maximum number of writers per stream that posts can create. Every follower learns each of them, and they
are never removed.
"""


class AppendBody(msgspec.Struct, forbid_unknown_fields=True):
    """A posted body: `facts` is a list of facts, each an unparsed JSON array of rows."""

    facts: list[msgspec.Raw]
    writer: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a JSON body. Raises `ApiError`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError("bad_request", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("bad_json", f"the body is not JSON: {error}") from error
    except RecursionError:
        raise ApiError("bad_json", "the JSON body is nested too deeply") from None


def check_append(posted: AppendBody) -> AppendBody:
    """Return `posted` if its writer and key are valid. Raises `ApiError` otherwise."""
    if posted.writer is not UNSET and not is_name(posted.writer):
        raise ApiError("bad_writer", BAD_WRITER)
    key = posted.idempotency_key
    if key is not UNSET and not (0 < len(key) <= MAX_KEY and key.isprintable()):
        raise ApiError("bad_request", f"idempotency_key must have 1 to {MAX_KEY} printable characters")
    return posted


def check_writer(posted: AppendBody, stream: str, known: Collection[str], instance: str) -> None:
    """Raises `ApiError` if these facts would exceed the stream's limit of writers.

    `known` are the stream's writers. This daemon's own `instance` may always write.
    """
    writer = posted.writer
    if writer is UNSET or writer == instance or writer in known or len(known) < MAX_WRITERS:
        return
    why = (
        f"{stream} has {len(known)} writers, the limit is {MAX_WRITERS}, and {writer} would be one more."
        " Post under a name that the stream has, or without a writer; keep a process's name over restarts"
    )
    raise ApiError("too_many_writers", why)


async def read_facts(stream: Stream[Any], posted: AppendBody, clock: IClock) -> list[bytes]:
    """Return the facts in canonical form.

    Raises `ApiError` for the first invalid row, and for a fact that is too large to send to replicas.
    """
    facts: list[bytes] = []
    for raw in posted.facts:
        if len(facts) % FACTS_AT_ONCE == FACTS_AT_ONCE - 1:
            await deferLater(clock, 0)  # type: ignore[arg-type]
        try:
            fact = stream.canonical_fact(bytes(raw))
        except RowError as error:
            why = f"fact {len(facts)}, row {error.index}: {error.why}"
            raise ApiError("bad_row", why) from error
        if len(fact) > MAX_FACT:
            why = f"fact {len(facts)} would be kept in {len(fact)} bytes; the limit is {MAX_FACT}"
            raise ApiError("too_large", why)
        facts.append(fact)
    return facts
