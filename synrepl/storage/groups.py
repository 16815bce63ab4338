"""One group commit: the appends that go together, and the facts they become.

Nothing here changes where the log stands: that is adopted only when the group is known to be kept.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

import msgspec
from twisted.internet.defer import Deferred

from synrepl.ports.interfaces import Appended, Head, Receipt
from synrepl.storage.digest import EMPTY, chain
from synrepl.streams.facts import Fact

__all__ = ["Group", "Request", "Standing", "checksum", "form"]

FACT_BYTES = 300
"""About what a fact costs beside its rows, in memory and on disk."""


def checksum(stream: str, writer: str, facts: Sequence[bytes]) -> str:
    """What was asked, in 64 hex digits. Lengths are part of it: where a fact ends makes a difference."""
    asked = sha256(f"{stream} {writer} {len(facts)}\n".encode())
    for rows in facts:
        asked.update(b"%d " % len(rows) + rows)
    return asked.hexdigest()


class Request:
    """One append that waits to be kept, and who waits for it.

    `sharers` asked for the same thing with the same key while it was under way, and get the same answer.
    """

    __slots__ = ("answer", "checksum", "facts", "key", "places", "sharers", "size", "stream", "writer")

    def __init__(
        self,
        stream: str,
        writer: str,
        facts: Sequence[bytes],
        key: str | None,
        asked: str,
        places: Sequence[tuple[str, int]] | None = None,
    ) -> None:
        self.places = places
        """The writer and token of each fact, when they were given elsewhere."""
        self.stream = stream
        self.writer = writer
        self.facts = facts
        self.key = key
        self.checksum = asked
        self.size = sum(map(len, facts)) + FACT_BYTES * len(facts)
        self.answer: Deferred[Appended] = Deferred()
        self.sharers: list[Deferred[Appended]] = []


class Standing:
    """Where the log stands, as far as it is known to be kept."""

    def __init__(self) -> None:
        self.epoch = 0
        self.serial = 0
        self.digest = EMPTY
        self.positions: dict[str, dict[str, int]] = {}
        self.allocated: dict[str, int] = {}

    def take(self, head: Head) -> None:
        """Stand where the engine says."""
        self.epoch = head.epoch
        self.serial = head.serial
        self.digest = head.digest
        self.allocated = dict(head.allocated)
        self.positions = {}
        for (stream, writer), token in head.positions.items():
            self.positions.setdefault(stream, {})[writer] = token

    def advance(self, facts: Iterable[Fact]) -> None:
        """Stand after these facts, which are kept."""
        fact = None
        for fact in facts:
            self.positions.setdefault(fact.stream, {})[fact.writer] = fact.token
            if fact.token > self.allocated.get(fact.stream, 0):
                self.allocated[fact.stream] = fact.token
        if fact is not None:
            self.serial = fact.serial
            self.digest = fact.digest


class Group(msgspec.Struct):
    """What a batch of appends becomes, and where the log stands once it is kept.

    `answers` go with the requests, in order; None where a key was used for another request.
    """

    facts: list[Fact]
    receipts: list[Receipt]
    answers: list[Appended | None]
    before: str
    after: str


def form(
    standing: Standing,
    requests: Sequence[Request],
    at_ms: int,
    receipt: Callable[[str], Receipt | None],
) -> Group:
    """Give serials, tokens and digests to what is new, and find the answers of what is not.

    A token is the next of its stream, whoever writes, unless it was given elsewhere; a given one that its
    writer has reached already is known and left out. `prev_token` is the same writer's last one.
    """
    epoch, serial, digest = standing.epoch, standing.serial, standing.digest
    allocated: dict[str, int] = {}
    previous: dict[tuple[str, str], int] = {}
    group = Group([], [], [], before=digest, after=digest)
    for request in requests:
        known = None if request.key is None else receipt(request.key)
        if known is not None:
            group.answers.append(known.appended if known.request == request.checksum else None)
            continue
        stream, writer, places = request.stream, request.writer, request.places
        highest = allocated.get(stream)
        if highest is None:
            highest = standing.allocated.get(stream, 0)
        first_serial = serial + 1
        tokens: list[int] = []
        for index, rows in enumerate(request.facts):
            if places is None:
                token = highest + 1
            else:
                writer, token = places[index]
            prev_token = previous.get((stream, writer))
            if prev_token is None:
                prev_token = standing.positions.get(stream, {}).get(writer, 0)
            if token <= prev_token:
                continue
            serial += 1
            highest = max(highest, token)
            digest = chain(
                digest,
                serial=serial,
                epoch=epoch,
                stream=stream,
                writer=writer,
                prev_token=prev_token,
                token=token,
                committed_at_ms=at_ms,
                rows=rows,
            )
            group.facts.append(Fact(serial, epoch, stream, writer, prev_token, token, rows, at_ms, digest))
            previous[stream, writer] = token
            tokens.append(token)
        allocated[stream] = highest
        appended = Appended(epoch, first_serial, tokens)
        group.answers.append(appended)
        if request.key is not None:
            group.receipts.append(Receipt(request.key, request.checksum, appended, at_ms))
    group.after = digest
    return group
