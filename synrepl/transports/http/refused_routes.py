"""Handlers of refused facts: those that could not be read, kept as they were sent."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from synrepl.http_api.routes import REFUSED, REMOVE_REFUSED, REPLAY_REFUSED
from synrepl.replication.refused_facts import Key, Outcome, RefusedFacts
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles

MAX_FACTS = 1_000
"""The most facts of one request: a replay takes a commit for each."""

MAX_ROW_BYTES = 4 * 1024 * 1024
"""About the bytes of rows in one answer."""


class RefusedFields(msgspec.Struct, frozen=True):
    """A refused fact. `publisher` is null for a peer that may not see all streams; `at` in Unix seconds."""

    stream: str
    writer: str
    token: int
    publisher: str | None
    why: str
    rows: Sequence[str]
    serial: int
    at: float


class RefusedAnswer(msgspec.Struct, frozen=True):
    """The refused facts that the peer may see, and how many there are `more`."""

    facts: list[RefusedFields]
    more: int


class FactName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a fact."""

    stream: str
    writer: str
    token: int


class FactNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts of a request or an answer."""

    facts: Annotated[list[FactName], msgspec.Meta(max_length=MAX_FACTS)]


class ReplayedFact(msgspec.Struct, frozen=True):
    """The outcome of the replay of a fact, and the reason if it was not stored."""

    stream: str
    writer: str
    token: int
    outcome: Outcome
    why: str


class ReplayAnswer(msgspec.Struct, frozen=True):
    """The facts of the request, in its order."""

    facts: list[ReplayedFact]


@handles(REFUSED)
async def list_all(call: Call) -> RefusedAnswer:
    """List the refused facts of the streams that the peer may read."""
    call.check_readable()
    streams, limit = call.query["streams"], call.query["limit"]
    seen = [
        one
        for one in await _refused(call).kept()
        if one.serial > call.query["since"]
        and (streams is None or one.fact.stream in streams)
        and call.access.sees(one.fact.stream)
    ]
    found: list[RefusedFields] = []
    size = 0
    for one in seen[:limit]:
        fact = one.fact
        size += sum(map(len, fact.rows or ()))
        if found and size > MAX_ROW_BYTES:
            break
        publisher = fact.publisher if call.access.streams is None else None
        found.append(
            RefusedFields(
                fact.stream, fact.writer, fact.token, publisher, fact.why, fact.rows or (), one.serial, one.at
            )
        )
    return RefusedAnswer(found, len(seen) - len(found))


@handles(REPLAY_REFUSED)
async def replay(call: Call, body: FactNames) -> ReplayAnswer:
    """Read these facts again. Raises `ApiError`, and `StorageError`."""
    refused, keys = _refused(call), _keys(call, body)
    outcomes = await refused.replay(keys)
    return ReplayAnswer([ReplayedFact(*key, *one) for key, one in zip(keys, outcomes, strict=True)])


@handles(REMOVE_REFUSED)
async def remove(call: Call, body: FactNames) -> FactNames:
    """Remove these facts. Raises `ApiError`, and `StorageError`."""
    removed = await _refused(call).remove(_keys(call, body))
    return FactNames([FactName(*key) for key in removed])


def _keys(call: Call, body: FactNames) -> list[Key]:
    call.check_streams(*{one.stream for one in body.facts})
    return list(dict.fromkeys((one.stream, one.writer, one.token) for one in body.facts))


def _refused(call: Call) -> RefusedFacts:
    return call.context.refused
