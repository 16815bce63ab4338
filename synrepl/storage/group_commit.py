"""Group commit: requests that are committed together, and the facts they become.

Building a group leaves the log's head unchanged. The head advances when the commit has succeeded.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from typing import Final

import msgspec
from twisted.internet.defer import Deferred

from synrepl.base.history import Appended, AppendKey, AppendReceipt
from synrepl.storage.log_head import LogHead
from synrepl.streams.digest import chain
from synrepl.streams.facts import LOST, NO_ROWS, Fact
from synrepl.streams.writer import Writer

FACT_BYTES = 300
"""The approximate size of a fact besides its rows, in memory and on disk, in bytes."""


ALL_OF_IT: Final = "*"
"""The stream of a request, and of its receipt, that appends to several streams at once."""


def checksum(stream: str, writer: str, facts: Sequence[bytes]) -> str:
    """Hash a request to 64 hex digits. Lengths are hashed too, so that boundaries between facts matter."""
    hashed = sha256(f"{stream} {writer} {len(facts)}\n".encode())
    for rows in facts:
        hashed.update(b"%d " % len(rows) + rows)
    return hashed.hexdigest()


class AppendRequest(msgspec.Struct, eq=False):
    """One queued append, with the Deferreds to fire.

    `assigned` has the writer's name and token of each fact, when they are assigned already; `writers` its
    writer, if the request is of several streams (`ALL_OF_IT`). `coalesced` are retries of the same request
    with the same key, which get the same response.
    """

    stream: str
    writer: str
    facts: Sequence[bytes]
    key: AppendKey | None
    checksum: str
    assigned: Sequence[tuple[str, int]] | None = None
    writers: Sequence[Writer] | None = None
    response: Deferred[Appended] = msgspec.field(default_factory=Deferred)
    coalesced: list[Deferred[Appended]] = []
    size: int = 0

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.facts)) + FACT_BYTES * len(self.facts)


class CommitGroup(msgspec.Struct):
    """The facts and receipts that a batch of requests becomes, and the digests before and after them.

    `results` go with the requests, in order; None for a key that belongs to another request.
    """

    facts: list[Fact]
    receipts: list[AppendReceipt]
    results: list[Appended | None]
    before: str
    after: str


def build_group(
    head: LogHead,
    requests: Sequence[AppendRequest],
    at_ms: int,
    receipt: Callable[[AppendKey], AppendReceipt | None],
    *,
    rows_at_token: Callable[[str, int], list[tuple[str, bytes]]] = lambda stream, token: [],
    unordered: Collection[str] = (),
    any_writer: Collection[str] = (),
) -> CommitGroup:
    """Give serials, tokens and digests to new facts, and look up the receipts of repeated requests."""
    growing = _GrowingGroup(head, at_ms, rows_at_token, unordered, any_writer)
    group = CommitGroup(growing.facts, [], [], before=head.digest, after=head.digest)
    for request in requests:
        known = None if request.key is None else receipt(request.key)
        if known is not None:
            group.results.append(known.appended if known.request == request.checksum else None)
            continue
        first_serial = growing.serial + 1
        if request.assigned is not None:
            tokens = growing.add_assigned(request.stream, request.assigned, request.facts)
        elif request.writers is not None:
            tokens = growing.add_new_of(request.writers, request.facts)
        else:
            tokens = growing.add_new(request.stream, request.writer, request.facts)
        appended = Appended(head.epoch, first_serial, tokens)
        group.results.append(appended)
        if request.key is not None:
            group.receipts.append(AppendReceipt(request.key, request.checksum, appended, at_ms))
    group.after = growing.digest
    return group


class _GrowingGroup:
    """The facts of a group so far, and where the log would end after them.

    The `prev_token` of a fact is its writer's previous token (0 if none).
    """

    def __init__(
        self,
        head: LogHead,
        at_ms: int,
        rows_at_token: Callable[[str, int], list[tuple[str, bytes]]],
        unordered: Collection[str],
        any_writer: Collection[str],
    ) -> None:
        self.facts: list[Fact] = []
        self.serial = head.serial
        self.digest = head.digest
        self._head = head
        self._at_ms = at_ms
        self._rows_at_token = rows_at_token
        self._unordered = unordered
        self._any_writer = any_writer
        self._highest: dict[str, int] = {}
        """The highest token of each stream in this group, over all writers."""
        self._positions: dict[str, dict[str, int]] = defaultdict(dict)
        """The positions of each stream's writers in this group."""
        self._filters: dict[str, _AssignedFilter] = {}

    def add_new(self, stream: str, writer: str, facts: Sequence[bytes]) -> list[int]:
        """Add facts that have no token yet: each gets the next one of its stream, over all writers."""
        highest = self._highest.get(stream) or self._head.allocated.get(stream, 0)
        first = token = max(highest, self._head.floor)
        prev_token = self._position(stream, writer) or 0
        for rows in facts:
            token += 1
            self._append(stream, writer, prev_token, token, rows)
            prev_token = token
        if facts:
            self._highest[stream] = self._positions[stream][writer] = token
        return list(range(first + 1, token + 1))

    def add_new_of(self, writers: Sequence[Writer], facts: Sequence[bytes]) -> list[int]:
        """Add facts that have no token yet, of several streams: each one's writer is given."""
        tokens: list[int] = []
        for (stream, writer), rows in zip(writers, facts, strict=True):
            tokens += self.add_new(stream, writer, [rows])
        return tokens

    def add_assigned(
        self, stream: str, assigned: Sequence[tuple[str, int]], facts: Sequence[bytes]
    ) -> list[int]:
        """Add those facts that are stored (`_AssignedFilter`), each under the writer and token that it has.

        A late fact comes after a later one of its writer. The first fact of a writer is not late at token 0
        if it has no rows: it tells followers that the writer exists. A late or lost fact follows no other:
        its `prev_token` is its own token.
        """
        tokens: list[int] = []
        highest = self._highest.get(stream) or self._head.allocated.get(stream, 0)
        for index, submitted in enumerate(facts):
            writer, token = assigned[index]
            position = self._position(stream, writer)
            rows, prev_token, is_late = submitted, position or 0, False
            if token > highest and submitted != LOST:
                # Most facts are the newest of their stream: they are stored as they are.
                highest = self._highest[stream] = token
            else:
                is_new_writer = position is None and token == 0 and submitted == NO_ROWS
                is_late = token <= prev_token and not is_new_writer
                stored = self._filter(stream).rows_to_store(writer, token, submitted, is_late=is_late)
                if stored is None:
                    continue
                rows = stored
                if is_late or submitted == LOST:
                    prev_token = token
                if token > highest:
                    highest = self._highest[stream] = token
            if not is_late:
                self._positions[stream][writer] = token
            self._append(stream, writer, prev_token, token, rows)
            tokens.append(token)
        return tokens

    def _append(self, stream: str, writer: str, prev_token: int, token: int, rows: bytes) -> None:
        at_ms, epoch = self._at_ms, self._head.epoch
        self.serial = serial = self.serial + 1
        self.digest = digest = chain(
            self.digest,
            serial=serial,
            epoch=epoch,
            stream=stream,
            writer=writer,
            prev_token=prev_token,
            token=token,
            committed_at_ms=at_ms,
            rows=rows,
        )
        self.facts.append(Fact(serial, epoch, stream, writer, prev_token, token, rows, at_ms, digest))

    def _position(self, stream: str, writer: str) -> int | None:
        """The token of the writer's last fact that was not late; None if it has none."""
        found = self._positions[stream].get(writer)
        return self._head.positions.get(stream, {}).get(writer) if found is None else found

    def _filter(self, stream: str) -> "_AssignedFilter":
        found = self._filters.get(stream)
        if found is None:
            found = self._filters[stream] = _AssignedFilter(
                stream,
                self._rows_at_token,
                self._head.allocated.get(stream, 0),
                self.facts,
                is_unordered=stream in self._unordered,
                is_any_writer=stream in self._any_writer,
            )
        return found


class _AssignedFilter(msgspec.Struct):
    """Decides which facts of a stream that arrive with a token are stored, and with which rows.

    `rows_at_token` reads the committed facts under a token; beyond token `highest` there are none. `formed`
    is the list of the group's facts, which grows while the filter is used.
    """

    stream: str
    rows_at_token: Callable[[str, int], list[tuple[str, bytes]]]
    highest: int
    formed: Sequence[Fact]
    is_unordered: bool
    is_any_writer: bool
    # The facts of this group by token, built only when a lookup needs them: most facts need none.
    by_token: dict[int, list[tuple[str, bytes]]] = {}
    looked_at: int = 0

    def rows_to_store(self, writer: str, token: int, rows: bytes, *, is_late: bool) -> bytes | None:
        """The rows to store for this fact; None to skip it.

        A `LOST` fact is stored without rows, unless it is late. Another late fact is stored in an unordered
        stream, unless it is a duplicate, has no rows, or has a token below 1, which cannot be read. In an
        `any_writer` stream a fact that is not late, and that another writer has reported, is stored without
        its rows.
        """
        if rows == LOST:
            return None if is_late else NO_ROWS
        if is_late and (not self.is_unordered or rows == NO_ROWS or token < 1):
            return None
        if is_late or (self.is_any_writer and rows != NO_ROWS):
            for reporter, known in self._known_rows(token):
                if known == rows and (reporter == writer or self.is_any_writer):
                    return None if is_late else NO_ROWS
        return rows

    def _known_rows(self, token: int) -> list[tuple[str, bytes]]:
        for fact in self.formed[self.looked_at :]:
            if fact.stream == self.stream:
                self.by_token.setdefault(fact.token, []).append((fact.writer, fact.rows))
        self.looked_at = len(self.formed)
        committed = self.rows_at_token(self.stream, token) if token <= self.highest else []
        return [*committed, *self.by_token.get(token, ())]


def parts_of(appended: Appended, counts: Sequence[int]) -> list[Appended]:
    """Return the results of the parts of an append to several streams."""
    found, at = [], 0
    for count in counts:
        first = None if appended.first_serial is None or not count else appended.first_serial + at
        found.append(Appended(appended.epoch, first, appended.tokens[at : at + count]))
        at += count
    return found
