"""A log in memory, with the contract of the real engines: for tests and for the simulator."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from uuid import uuid4

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import BEGINNING, EpochStart, Lease, LogPosition, LogRange, LogSnapshot
from synrepl.ports.interfaces import AppendReceipt, Head, KeysOf
from synrepl.storage.continuity import (
    DiscardedRanges,
    advance,
    check_ascend,
    check_epoch_start,
    check_follow,
    discarded_rows,
)
from synrepl.storage.paging import take_rows, take_tokens
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.wire.filter import ALL, Filter

__all__ = ["MemoryEngine"]


class MemoryEngine:
    """An `IEngine` whose disk is this object: commits survive `crash` and `close`.

    For tests, `commits` counts the successful commits and `facts` has all facts.
    """

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.receipts: dict[str, AppendReceipt] = {}
        self.commits = 0
        self.epoch = 1
        self.staged: MemoryEngine | None = None
        self._by_stream: dict[str, list[Fact]] = {}
        self._positions: dict[tuple[str, str], int] = {}
        self._discarded = DiscardedRanges()
        self._allocated: dict[str, int] = {}
        self._position = self._trimmed_upto = BEGINNING
        self._epoch_starts: list[EpochStart] = []
        self._notes: dict[str, str] = {}
        self._leases: dict[str, Lease] = {}
        self._boots = 0
        self._is_open = False
        self._failure: tuple[StorageError, bool, int] | None = None
        self._head_failures: list[StorageError] = []

    # For tests

    def fail_next(self, error: StorageError, *, kept: bool = False, silent: int | None = None) -> None:
        """Make the next commit raise `error`: before it stores anything, or, with `kept`, after it.

        Then `silent` calls of `head` fail as well, as for an unreachable database: with 1 (the default if
        `kept`) the outcome of the commit stays unknown; with 0 it can be read at once.
        """
        self._failure = (error, kept, int(kept) if silent is None else silent)

    def crash(self) -> None:
        """Close without cleanup, as a killed process does. The next `open` finds the commits.

        The old log's threads must have stopped: they would use the engine of the new log.
        """
        self._is_open = False
        self._failure = None
        self._head_failures.clear()
        if self.staged is not None:
            self.staged.crash()

    # IEngine

    def open(self) -> Head:
        """Open the log. Raises `StorageError` if it is open already."""
        if self._is_open:
            raise StorageError(op="open", why="this log is open already", hint="close it first")
        self._is_open = True
        self._boots += 1
        for name in ("uuid", "history"):
            self._notes.setdefault(name, str(uuid4()))
        return self.head()

    def check(self) -> None:
        """Do nothing: no other process can change this log."""
        self._check("check")

    def head(self) -> Head:
        """The end of the log now."""
        self._check("head")
        if self._head_failures:
            raise self._head_failures.pop()
        return Head(
            epoch=self.epoch,
            serial=self._position.serial,
            digest=self._position.digest,
            boots=self._boots,
            positions=dict(self._positions),
            allocated=dict(self._allocated),
            trimmed_upto=self._trimmed_upto,
            epoch_starts=tuple(self._epoch_starts),
        )

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Store all of these or none."""
        self._check("commit")
        failure, self._failure = self._failure, None
        if failure is not None:
            self._head_failures = [failure[0]] * failure[2]
            if not failure[1]:
                raise failure[0]
        if upto is None:
            check_follow(facts, self._position.serial, self._position.digest)
        else:
            check_ascend(facts, self._position.serial, upto.serial)
        self.commits += 1
        for fact in facts:
            stream = self._by_stream.setdefault(fact.stream, [])
            if stream and fact.token < stream[-1].token:
                stream.insert(bisect_right(stream, fact.token, key=_token), fact)
            else:
                stream.append(fact)
            self._allocated[fact.stream] = max(fact.token, self._allocated.get(fact.stream, fact.token))
            self.epoch = max(self.epoch, fact.epoch)
        advance(self._positions, facts)
        self.facts.extend(facts)
        if upto is not None:
            self._position = upto
            self.epoch = max(self.epoch, upto.epoch)
        elif facts:
            self._position = facts[-1].position
        for receipt in receipts:
            self.receipts.setdefault(receipt.key, receipt)
        if failure is not None:
            raise failure[0]

    def read(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> tuple[list[Fact], int]:
        """Facts in order of serial, and the last serial examined."""
        self._check("read")
        upto = min(upto, self._position.serial)
        page, is_full = take_rows(self._matching(after, upto, filter), limit)
        return page, page[-1].serial if is_full else max(after, upto)

    def read_text(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> tuple[bytes, int]:
        """Facts as lines of text, and the last serial examined."""
        page, last = self._page(after, upto, limit, filter)
        lines = [
            b"\x1f".join(
                value if isinstance(value, bytes) else str(value).encode()
                for value in msgspec.structs.astuple(fact)
            )
            for fact in page
        ]
        return b"\n".join(lines), last

    def extent(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> LogRange:
        """Summarize facts."""
        page, last = self._page(after, upto, limit, filter)
        tokens: dict[tuple[str, str], int] = {}
        advance(tokens, page)
        return LogRange(
            serial=last,
            facts=len(page),
            bytes=sum(len(fact.rows) for fact in page),
            tokens=tokens,
            at_ms=max((fact.committed_at_ms for fact in page), default=0),
        )

    def _page(self, after: int, upto: int, limit: int, filter: Filter) -> tuple[list[Fact], int]:
        """At most `limit` facts, and the last serial examined."""
        self._check("read")
        upto = min(upto, self._position.serial)
        page = list(islice(self._matching(after, upto, filter), limit))
        return page, page[-1].serial if len(page) >= limit else max(after, upto)

    def _matching(self, after: int, upto: int, filter: Filter) -> Iterator[Fact]:
        first, last = (bisect_right(self.facts, serial, key=_serial) for serial in (after, upto))
        return (fact for fact in self.facts[first:last] if filter.passes(fact.stream, fact.writer))

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream in order of token, and whether there are more."""
        self._check("read")
        facts = self._by_stream.get(stream, [])
        first, last = (bisect_right(facts, token, key=_token) for token in (after, upto))
        return take_tokens(
            (
                fact
                for fact in facts[first:last]
                if fact.serial <= serial
                and (writer is None or fact.writer == writer)
                and not self._discarded.contains(fact)
            ),
            limit,
        )

    def rows_at_token(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        """The writer and rows of every fact of this stream under this token."""
        self._check("rows_at_token")
        facts = self._by_stream.get(stream, [])
        first, last = bisect_left(facts, token, key=_token), bisect_right(facts, token, key=_token)
        return [(fact.writer, fact.rows) for fact in facts[first:last] if not self._discarded.contains(fact)]

    def begin_epoch(self, epoch_start: EpochStart) -> Head:
        """Begin a new epoch at the end of the log."""
        self._check("begin_epoch")
        check_epoch_start(epoch_start, self.head().position)
        self.epoch = epoch_start.epoch
        self._position = epoch_start.position
        self._epoch_starts.append(epoch_start)
        if epoch_start.stream:
            self._discarded = DiscardedRanges(discarded_rows(self._epoch_starts))
            for position, token in self._positions.items():
                if position[0] == epoch_start.stream:
                    self._positions[position] = min(token, epoch_start.token)
        self._allocate()
        return self.head()

    def digest_at(self, serial: int) -> str | None:
        """The digest at this serial; None if it is unknown."""
        self._check("digest_at")
        for position in (self._position, self._trimmed_upto):
            if serial == position.serial:
                return position.digest
        index = bisect_left(self.facts, serial, key=_serial)
        found = self.facts[index : index + 1]
        return found[0].digest if found and found[0].serial == serial else None

    def receipts_between(self, after: int, upto: int) -> list[AppendReceipt]:
        """The receipts of appends with ``after < first serial <= upto``."""
        self._check("receipts_between")
        found = [
            (first, receipt)
            for receipt in self.receipts.values()
            if (first := receipt.appended.first_serial) is not None and after < first <= upto
        ]
        return [receipt for _, receipt in sorted(found, key=lambda one: one[0])]

    def snapshot(self) -> LogSnapshot:
        """Everything the log has besides facts, as of now."""
        head = self.head()
        return LogSnapshot(
            position=head.position,
            trimmed_upto=head.trimmed_upto,
            epoch_starts=head.epoch_starts,
            positions=head.positions,
            receipts=list(self.receipts.values()),
        )

    def restore(self, snapshot: LogSnapshot) -> Head:
        """Replace everything besides the facts by this snapshot."""
        self._check("restore")
        self._position, self._trimmed_upto = snapshot.position, snapshot.trimmed_upto
        self._epoch_starts = list(snapshot.epoch_starts)
        self._positions = dict(snapshot.positions)
        self.receipts = {receipt.key: receipt for receipt in snapshot.receipts}
        self.epoch = snapshot.position.epoch
        self._discarded = DiscardedRanges(discarded_rows(self._epoch_starts))
        self._allocate()
        return self.head()

    def size(self, after: int) -> int:
        """The approximate size in bytes of the facts beyond this serial."""
        self._check("size")
        first = bisect_right(self.facts, after, key=_serial)
        return sum(len(fact.rows) + 300 for fact in self.facts[first:])

    def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """Trim a slice of the log."""
        self._check("trim")
        upto = min(upto, self._position.serial)
        first = bisect_right(self.facts, self._trimmed_upto.serial, key=_serial)
        last = bisect_right(self.facts, upto, key=_serial)
        trimmed_upto = self._trimmed_upto
        for fact in self.facts[first:last][:limit]:
            trimmed_upto = fact.position
        if last - first <= limit and self._position.serial == upto:
            trimmed_upto = self._position
        base = self.facts[: bisect_right(self.facts, trimmed_upto.serial, key=_serial)]
        newest: dict[tuple[str, bytes], int] = {}
        for fact in base:
            if fact.rows != NO_ROWS and not self._discarded.contains(fact):
                newest.update({(fact.stream, key): fact.serial for key in keys(fact.stream, fact.rows) or ()})
        self._trimmed_upto = trimmed_upto
        current = set(newest.values())
        for fact in base:
            if fact.serial not in current:
                self.facts.remove(fact)
                self._by_stream[fact.stream].remove(fact)
        return self._trimmed_upto

    def notes(self) -> dict[str, str]:
        """Short texts stored with the log, by name."""
        self._check("notes")
        return dict(self._notes)

    def note(self, notes: Mapping[str, str | None]) -> None:
        """Store these notes; None deletes a note."""
        self._check("note")
        for name, text in notes.items():
            if text is None:
                self._notes.pop(name, None)
            else:
                self._notes[name] = text

    def leases(self) -> list[Lease]:
        """All leases, in order of uuid."""
        self._check("leases")
        return [self._leases[uuid] for uuid in sorted(self._leases)]

    def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        """Store these leases and delete the dropped uuids."""
        self._check("keep_leases")
        self._leases.update((lease.uuid, lease) for lease in changed)
        for uuid in dropped:
            self._leases.pop(uuid, None)

    def staging(self) -> "MemoryEngine":
        """The log in which a copy is staged."""
        if self.staged is None:
            self.staged = MemoryEngine()
        return self.staged

    def adopt_staged(self) -> Head:
        """Replace this log by the staged one."""
        self._check("adopt_staged")
        staged = self.staged
        if staged is None or staged._is_open:
            raise StorageError(op="adopt_staged", why="no log is staged, or the staged log is not closed")
        boots, commits = max(self._boots, staged._boots) + 1, self.commits
        vars(self).update(vars(staged))
        self.staged = None
        self._boots, self.commits, self._is_open = boots, commits, True
        return self.head()

    def drop_staged(self) -> None:
        """Delete the staged log."""
        self.staged = None

    def receipt(self, key: str) -> AppendReceipt | None:
        """The receipt of the append with this key."""
        self._check("receipt")
        return self.receipts.get(key)

    def forget_receipts(self, before_ms: int) -> None:
        """Delete the receipts from before this time."""
        self._check("forget_receipts")
        self.receipts = {key: receipt for key, receipt in self.receipts.items() if receipt.at_ms >= before_ms}

    def close(self) -> None:
        """Close the log. Idempotent."""
        self._is_open = False

    def _allocate(self) -> None:
        """Compute the allocated tokens from positions and valid facts."""
        self._allocated = {}
        for (stream, _), token in self._positions.items():
            self._allocated[stream] = max(token, self._allocated.get(stream, token))
        for fact in self.facts:
            if not self._discarded.contains(fact):
                self._allocated[fact.stream] = max(fact.token, self._allocated.get(fact.stream, fact.token))

    def _check(self, op: str) -> None:
        if not self._is_open:
            raise StorageError(op=op, why="the log is not open")


def _token(fact: Fact) -> int:
    return fact.token


def _serial(fact: Fact) -> int:
    return fact.serial
