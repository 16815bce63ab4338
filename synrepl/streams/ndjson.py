"""Facts, and what stands beside them, as lines of JSON: how a log travels.

A fact is written so in the changelog over HTTP, in blocks between daemons and in files.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.streams.facts import Fact

__all__ = ["line", "lines", "read_facts"]


class _Line(msgspec.Struct):
    serial: int
    epoch: int
    stream: str
    writer: str
    prev_token: int
    token: int
    rows: msgspec.Raw
    committed_at_ms: int
    digest: str


_decoder: Final = msgspec.json.Decoder(_Line)


@lru_cache(maxsize=1024)
def _quoted(name: str) -> bytes:
    return msgspec.json.encode(name)


def line(fact: Fact) -> bytes:
    """A fact as a line of JSON."""
    return (
        b'{"serial":%d,"epoch":%d,"stream":%b,"writer":%b,"prev_token":%d,"token":%d,"rows":%b,'
        b'"committed_at_ms":%d,"digest":"%b"}\n'
    ) % (
        fact.serial,
        fact.epoch,
        _quoted(fact.stream),
        _quoted(fact.writer),
        fact.prev_token,
        fact.token,
        fact.rows,
        fact.committed_at_ms,
        fact.digest.encode(),
    )


def lines(facts: Iterable[Fact]) -> bytes:
    """Facts as lines of JSON."""
    return b"".join(map(line, facts))


def read_facts(data: bytes) -> list[Fact]:
    """The facts that these lines are. Raises RemoteProtocolError where one is none."""
    try:
        return [
            Fact(
                one.serial,
                one.epoch,
                one.stream,
                one.writer,
                one.prev_token,
                one.token,
                bytes(one.rows),
                one.committed_at_ms,
                one.digest,
            )
            for one in _decoder.decode_lines(data)
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a line is no fact: {error}") from error
