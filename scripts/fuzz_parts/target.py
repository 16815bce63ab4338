"""What a target of the fuzzer is, and what several of them do."""

import random
from collections.abc import Iterator
from typing import Any, Final

from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

__all__ = ["MAX_ANSWER", "BadAnswer", "Target", "conversed", "pieces", "words"]

MAX_ANSWER: Final = 8 * 1024 * 1024
"""Bytes that are answered to one input, at most."""


class Target:
    """Something that is fed."""

    def seeds(self) -> list[bytes]:
        """What to begin with, beside the corpus."""
        return [b""]

    def run(self, data: bytes) -> object:
        """Feed it; gives what it did, in short."""
        raise NotImplementedError


class BadAnswer(Exception):
    """An answer that must not be."""


def pieces(data: bytes, seed: int) -> Iterator[bytes]:
    """The bytes in pieces, split anywhere; with seed 0 in one."""
    chance = random.Random(seed)
    most = chance.choice((1, 7, 100, 5_000)) if seed else len(data) or 1
    position = 0
    while position < len(data):
        size = chance.randint(1, most) if seed else most
        yield data[position : position + size]
        position += size


def words(text: bytes) -> tuple[str, ...]:
    """The words that lines of an answer begin with."""
    return tuple(sorted({line.split(b" ")[0].decode("latin-1") for line in text.splitlines()}))


def conversed(protocol: Any, clock: Clock, text: bytes, seed: int) -> tuple[bytes, bool]:
    transport = StringTransport()
    protocol.makeConnection(transport)
    for piece in pieces(text, seed):
        if transport.disconnecting:
            break
        protocol.dataReceived(piece)
    clock.advance(0.01)
    protocol.connectionLost(Failure(ConnectionDone()))
    said = transport.value()
    if len(said) > MAX_ANSWER:
        raise BadAnswer(f"{len(said)} bytes for {len(text)}")
    return said, bool(transport.disconnecting)
