"""The base class of targets, and helpers of several targets."""

import random
from collections.abc import Iterator
from typing import Any, Final

from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

__all__ = ["MAX_ANSWER", "BadAnswer", "Target", "conversed", "pieces", "words"]

MAX_ANSWER: Final = 8 * 1024 * 1024
"""The largest answer to one input, in bytes."""


class Target:
    """Code that the fuzzer feeds with inputs."""

    def seeds(self) -> list[bytes]:
        """Return the first inputs, besides the corpus."""
        return [b""]

    def run(self, data: bytes) -> object:
        """Handle one input, and return a short description of the result. Raises `BadAnswer` and others."""
        raise NotImplementedError


class BadAnswer(Exception):
    """A target gave an answer that is never allowed."""


def pieces(data: bytes, seed: int) -> Iterator[bytes]:
    """Yield the bytes in pieces of random sizes; with seed 0 in one piece."""
    chance = random.Random(seed)
    most = chance.choice((1, 7, 100, 5_000)) if seed else len(data) or 1
    position = 0
    while position < len(data):
        size = chance.randint(1, most) if seed else most
        yield data[position : position + size]
        position += size


def words(text: bytes) -> tuple[str, ...]:
    """Return the first words of the lines of an answer, sorted, each once."""
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
        raise BadAnswer(f"an answer of {len(said)} bytes to an input of {len(text)}")
    return said, bool(transport.disconnecting)
