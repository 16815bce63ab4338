"""Group commit: requests that are committed together, and the facts they become.

Building a group leaves the log's head unchanged. The head advances when the commit has succeeded.
"""

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
    """Give serials, tokens and digests to new facts, and look up the receipts of repeated requests.

    Unless it is assigned already, a token is the next of its stream over all writers. An assigned fact up to
    its writer's position is skipped, unless `_AssignedFilter` stores it or it is a new writer's empty fact at
    token 0. `prev_token` is the writer's previous token (0 if none); in a late fact, and in one that is
    `LOST`, it is the fact's own.
    """
    epoch, serial, digest = head.epoch, head.serial, head.digest
    allocated: dict[str, int] = {}
    previous: dict[Writer, int] = {}
    writer = Writer("", "")
    filters: dict[str, _AssignedFilter] = {}
    group = CommitGroup([], [], [], before=digest, after=digest)
    for request in requests:
        known = None if request.key is None else receipt(request.key)
        if known is not None:
            group.results.append(known.appended if known.request == request.checksum else None)
            continue
        stream, assigned, writers = request.stream, request.assigned, request.writers
        if request.writer != writer.name or stream != writer.stream:
            writer = Writer(stream, request.writer)
        highest = allocated.get(stream)
        if highest is None:
            highest = head.allocated.get(stream, 0)
        stream_filter = filters.get(stream)
        if stream_filter is None and (stream in unordered or stream in any_writer):
            stream_filter = filters[stream] = _AssignedFilter(
                stream,
                rows_at_token,
                highest,
                group.facts,
                is_unordered=stream in unordered,
                is_any_writer=stream in any_writer,
            )
        first_serial = serial + 1
        tokens: list[int] = []
        for index, submitted in enumerate(request.facts):
            rows = submitted
            if writers is not None and writers[index] != writer:
                allocated[stream] = highest
                writer = writers[index]
                stream = writer.stream
                highest = max(allocated.get(stream, 0), head.allocated.get(stream, 0))
            if assigned is None:
                token = highest + 1
            else:
                name, token = assigned[index]
                if name != writer.name:
                    writer = Writer(stream, name)
            prev_token = previous.get(writer)
            if prev_token is None:
                position = head.positions.get(stream, {}).get(writer.name)
                # The first fact without rows at token 0 tells followers that the writer exists.
                is_initial = position is None and token == 0 and submitted == NO_ROWS
                prev_token = position or 0
            else:
                is_initial = False
            is_late = token <= prev_token and not is_initial
            is_lost = submitted == LOST
            if is_lost:
                rows = NO_ROWS
                if is_late:
                    continue
            elif is_late or (stream_filter is not None and token <= highest):
                stored_rows = (
                    None
                    if stream_filter is None
                    else stream_filter.rows_to_store(writer.name, token, submitted, is_late=is_late)
                )
                if stored_rows is None:
                    continue
                rows = stored_rows
            if not is_late:
                previous[writer] = token
                highest = max(highest, token)
            if is_late or is_lost:
                prev_token = token
            serial += 1
            digest = chain(
                digest,
                serial=serial,
                epoch=epoch,
                stream=stream,
                writer=writer.name,
                prev_token=prev_token,
                token=token,
                committed_at_ms=at_ms,
                rows=rows,
            )
            group.facts.append(
                Fact(serial, epoch, stream, writer.name, prev_token, token, rows, at_ms, digest)
            )
            tokens.append(token)
        allocated[stream] = highest
        appended = Appended(epoch, first_serial, tokens)
        group.results.append(appended)
        if request.key is not None:
            group.receipts.append(AppendReceipt(request.key, request.checksum, appended, at_ms))
    group.after = digest
    return group


class _AssignedFilter(msgspec.Struct):
    """Decides which facts that arrive with a token are stored, in a stream that is unordered or `any_writer`.

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

        A late fact is stored in an unordered stream, unless it is a duplicate, has no rows, or has a token
        below 1, which cannot be read. In an `any_writer` stream a fact that is not late, and that another
        writer has reported, is stored without its rows.
        """
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
