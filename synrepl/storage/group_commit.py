"""One group commit: the appends that go together, and the facts they become.

Nothing here changes where the log stands: that is adopted only when the group is known to be kept.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256

import msgspec
from twisted.internet.defer import Deferred

from synrepl.ports.history import BEGINNING, EpochStart
from synrepl.ports.interfaces import Appended, AppendReceipt, Head
from synrepl.streams.digest import EMPTY, chain
from synrepl.streams.facts import NO_ROWS, Fact

__all__ = ["CommitGroup", "AppendRequest", "LogHead", "checksum", "form"]

FACT_BYTES = 300
"""About what a fact costs beside its rows, in memory and on disk."""


def checksum(stream: str, writer: str, facts: Sequence[bytes]) -> str:
    """What was asked, in 64 hex digits. Lengths are part of it: where a fact ends makes a difference."""
    asked = sha256(f"{stream} {writer} {len(facts)}\n".encode())
    for rows in facts:
        asked.update(b"%d " % len(rows) + rows)
    return asked.hexdigest()


class AppendRequest:
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


class LogHead:
    """Where the log stands, as far as it is known to be kept."""

    def __init__(self) -> None:
        self.epoch = 0
        self.serial = 0
        self.digest = EMPTY
        self.receipts_upto = 0
        self.trimmed_upto = BEGINNING
        self.epoch_starts: Sequence[EpochStart] = ()
        self.positions: dict[str, dict[str, int]] = {}
        self.allocated: dict[str, int] = {}

    def take(self, head: Head) -> None:
        """Stand where the engine says."""
        self.epoch = head.epoch
        self.serial = head.serial
        self.digest = head.digest
        self.receipts_upto = head.serial
        self.trimmed_upto = head.trimmed_upto
        self.epoch_starts = head.epoch_starts
        self.allocated = dict(head.allocated)
        self.positions = {}
        for (stream, writer), token in head.positions.items():
            self.positions.setdefault(stream, {})[writer] = token

    def advance(self, facts: Iterable[Fact]) -> None:
        """Stand after these facts, which are kept."""
        fact = None
        for fact in facts:
            # Not of a late fact, whose token its writer had reached before.
            if fact.prev_token < fact.token or not fact.token:
                self.positions.setdefault(fact.stream, {})[fact.writer] = fact.token
            if fact.token > self.allocated.get(fact.stream, 0):
                self.allocated[fact.stream] = fact.token
        if fact is not None:
            self.serial = fact.serial
            self.digest = fact.digest


class CommitGroup(msgspec.Struct):
    """What a batch of appends becomes, and where the log stands once it is kept.

    `answers` go with the requests, in order; None where a key was used for another request.
    """

    facts: list[Fact]
    receipts: list[AppendReceipt]
    answers: list[Appended | None]
    before: str
    after: str


def form(
    standing: LogHead,
    requests: Sequence[AppendRequest],
    at_ms: int,
    receipt: Callable[[str], AppendReceipt | None],
    *,
    held: Callable[[str, int], list[tuple[str, bytes]]] = lambda stream, token: [],
    unordered: Collection[str] = (),
    told_by_all: Collection[str] = (),
) -> CommitGroup:
    """Give serials, tokens and digests to what is new, and find the answers of what is not.

    A token is the next of its stream, whoever writes, unless it was given elsewhere; of those given,
    `_AdoptedFilter` says what is news. `prev_token` is the same writer's last one, or of a late fact its own.
    """
    epoch, serial, digest = standing.epoch, standing.serial, standing.digest
    allocated: dict[str, int] = {}
    previous: dict[tuple[str, str], int] = {}
    given: dict[str, _AdoptedFilter] = {}
    group = CommitGroup([], [], [], before=digest, after=digest)
    for request in requests:
        known = None if request.key is None else receipt(request.key)
        if known is not None:
            group.answers.append(known.appended if known.request == request.checksum else None)
            continue
        stream, writer, places = request.stream, request.writer, request.places
        highest = allocated.get(stream)
        if highest is None:
            highest = standing.allocated.get(stream, 0)
        of_stream = given.get(stream)
        if of_stream is None and (stream in unordered or stream in told_by_all):
            of_stream = given[stream] = _AdoptedFilter(
                stream,
                held,
                highest,
                group.facts,
                is_unordered=stream in unordered,
                is_told_by_all=stream in told_by_all,
            )
        first_serial = serial + 1
        tokens: list[int] = []
        for index, asked in enumerate(request.facts):
            rows = asked
            if places is None:
                token = highest + 1
            else:
                writer, token = places[index]
            prev_token = previous.get((stream, writer))
            if prev_token is None:
                reached = standing.positions.get(stream, {}).get(writer)
                # That a writer stands at the very beginning is worth knowing, once.
                begins = reached is None and token == 0 and asked == NO_ROWS
                prev_token = reached or 0
            else:
                begins = False
            is_late = token <= prev_token and not begins
            if is_late or (of_stream is not None and token <= highest):
                news = None if of_stream is None else of_stream.news(writer, token, asked, is_late=is_late)
                if news is None:
                    continue
                rows = news
            if is_late:
                prev_token = token
            else:
                previous[stream, writer] = token
                highest = max(highest, token)
            serial += 1
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
            tokens.append(token)
        allocated[stream] = highest
        appended = Appended(epoch, first_serial, tokens)
        group.answers.append(appended)
        if request.key is not None:
            group.receipts.append(AppendReceipt(request.key, request.checksum, appended, at_ms))
    group.after = digest
    return group


class _AdoptedFilter:
    """What is news of the facts given to one stream that is unordered, or told by all.

    `held` says what was committed under a token, and is asked only up to `highest`, beyond which there is
    nothing; `formed` is what goes into this group so far.
    """

    def __init__(
        self,
        stream: str,
        held: Callable[[str, int], list[tuple[str, bytes]]],
        highest: int,
        formed: Sequence[Fact],
        *,
        is_unordered: bool,
        is_told_by_all: bool,
    ) -> None:
        self._stream = stream
        self._held = held
        self._highest = highest
        self._formed = formed
        self._is_unordered = is_unordered
        self._is_told_by_all = is_told_by_all
        # What was formed under each token, as far as it was looked at: most facts need no look.
        self._by_token: dict[int, list[tuple[str, bytes]]] = {}
        self._looked_at = 0

    def news(self, writer: str, token: int, rows: bytes, *, is_late: bool) -> bytes | None:
        """The rows to keep, or None when this fact is left out.

        Late ones are news where their stream is unordered, unless the same fact is held, or they have no
        rows, or a token that nobody can read. What another writer has told is kept without its rows.
        """
        if is_late and (not self._is_unordered or rows == NO_ROWS or token < 1):
            return None
        if is_late or (self._is_told_by_all and rows != NO_ROWS):
            for teller, told in self._under(token):
                if told == rows and (teller == writer or self._is_told_by_all):
                    return None if is_late else NO_ROWS
        return rows

    def _under(self, token: int) -> list[tuple[str, bytes]]:
        """The writer and the rows of every fact under this token: committed, then formed."""
        for fact in self._formed[self._looked_at :]:
            if fact.stream == self._stream:
                self._by_token.setdefault(fact.token, []).append((fact.writer, fact.rows))
        self._looked_at = len(self._formed)
        committed = self._held(self._stream, token) if token <= self._highest else []
        return [*committed, *self._by_token.get(token, ())]
