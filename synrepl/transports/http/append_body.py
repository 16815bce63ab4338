"""The body of a POST of facts: from bytes to facts that can be kept, or to what is wrong with it."""

from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from twisted.internet.task import deferLater

from synrepl.errors import RowError
from synrepl.ports.interfaces import IClock
from synrepl.streams.stream import Stream
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.query import BAD_WORD, is_word
from synrepl.wire.blocks import MAX_FACT

__all__ = [
    "MAX_WRITERS",
    "AppendBody",
    "check_posted",
    "check_writer",
    "decoded",
    "read_body",
    "read_facts",
    "read_said",
]

T = TypeVar("T")

FACTS_AT_ONCE: Final = 1_000
"""Facts checked before the reactor gets its turn again: some five milliseconds of work."""

MAX_KEY: Final = 255

MAX_WRITERS: Final = 1_000
"""Writers of one stream that posts may bring about. Each is told to every follower, and stays for good."""


class AppendBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted: `facts` is a list of facts, each a JSON array of rows, not looked into yet."""

    facts: list[msgspec.Raw]
    writer: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


_decoder: Final = msgspec.json.Decoder(AppendBody)


def read_body(body: bytes) -> AppendBody:
    """What a body says. Raises `ApiError`."""
    return check_posted(decoded(_decoder, body))


def decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """What a body says that is JSON. Raises `ApiError`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(400, "bad_request", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "bad_json", f"the body is not JSON: {error}") from error
    except RecursionError:
        raise ApiError(400, "bad_json", "the body is not JSON: nested too deeply") from None


def check_posted(posted: AppendBody) -> AppendBody:
    """The same, if writer and key can be ones. Raises `ApiError`."""
    if posted.writer is not UNSET and not is_word(posted.writer):
        raise ApiError(400, "bad_writer", BAD_WORD)
    key = posted.idempotency_key
    if key is not UNSET and not (0 < len(key) <= MAX_KEY and key.isprintable()):
        raise ApiError(400, "bad_request", f"idempotency_key has 1 to {MAX_KEY} printable characters")
    return posted


def check_writer(posted: AppendBody, stream: str, known: Collection[str], instance: str) -> None:
    """Raises `ApiError` if these facts would give a stream one writer too many.

    `known` are the writers that the stream has. This daemon's own `instance` may always write.
    """
    writer = posted.writer
    if writer is UNSET or writer == instance or writer in known or len(known) < MAX_WRITERS:
        return
    why = (
        f"{stream} has {len(known)} writers, and posts may name {MAX_WRITERS}; {writer} would be one more."
        " Post under a name that the stream has, or without a writer; a process keeps its name over restarts"
    )
    raise ApiError(409, "too_many_writers", why)


async def read_facts(stream: Stream[Any], posted: AppendBody, clock: IClock) -> list[bytes]:
    """The facts in canonical form.

    Raises `ApiError` for the first row that is not one, and for a fact that replicas could not be sent.
    """
    facts: list[bytes] = []
    for raw in posted.facts:
        if len(facts) % FACTS_AT_ONCE == FACTS_AT_ONCE - 1:
            await deferLater(clock, 0)  # type: ignore[arg-type]
        try:
            fact = stream.canonical_fact(bytes(raw))
        except RowError as error:
            why = f"fact {len(facts)}, row {error.index}: {error.why}"
            raise ApiError(400, "bad_row", why) from error
        if len(fact) > MAX_FACT:
            why = f"fact {len(facts)} would be kept in {len(fact)} bytes; one fact may have {MAX_FACT}"
            raise ApiError(413, "too_large", why)
        facts.append(fact)
    return facts


def read_said(shape: type[T], request: Any, most: int) -> T:
    """What the small body of a request says, of at most `most` bytes; an empty one says only defaults.

    Raises `ApiError`.
    """
    body = request.content.read(most + 1)
    if len(body) > most:
        raise ApiError(413, "too_large", f"this may have {most} bytes")
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "bad_request", str(error)) from error
