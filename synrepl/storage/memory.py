"""A log kept in memory, under the contract of the real ones: for tests and for the simulator."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

from synrepl.errors import StorageError
from synrepl.ports.interfaces import Head, Receipt
from synrepl.storage.digest import EMPTY
from synrepl.storage.following import advance, check_follow
from synrepl.storage.paging import take_rows, take_tokens
from synrepl.storage.voids import Void, Voids
from synrepl.streams.facts import Fact

__all__ = ["MemoryEngine"]


class MemoryEngine:
    """An `IEngine` whose disk is this object: what was committed outlives `crash` and `close`.

    `commits` counts the commits that were kept, `facts` is all that is kept, for tests to look at.
    """

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.receipts: dict[str, Receipt] = {}
        self.commits = 0
        self.epoch = 1
        self._by_stream: dict[str, list[Fact]] = {}
        self._positions: dict[tuple[str, str], int] = {}
        self._voids = Voids()
        self._allocated: dict[str, int] = {}
        self._boots = 0
        self._is_open = False
        self._failure: tuple[StorageError, bool, int] | None = None
        self._head_failures: list[StorageError] = []

    # What only tests do

    def fail_next(self, error: StorageError, *, kept: bool = False, silent: int | None = None) -> None:
        """Let the next commit raise `error`: before anything is kept, or, with `kept`, after all of it was.

        After it `silent` calls of `head` fail as well, as with a database that cannot be reached: with one
        (the default of `kept`) whoever committed cannot know the outcome; with none it can ask at once.
        """
        self._failure = (error, kept, int(kept) if silent is None else silent)

    def crash(self) -> None:
        """Let go without a word, as a killed process does. The next `open` finds what was committed.

        The threads of the old log must be stopped: it would be taken for the new one.
        """
        self._is_open = False
        self._failure = None
        self._head_failures.clear()

    # The contract

    def open(self) -> Head:
        """Take hold of it; `StorageError` when someone has it open."""
        if self._is_open:
            raise StorageError(op="open", why="this log is open already", hint="one log at a time")
        self._is_open = True
        self._boots += 1
        return self.head()

    def head(self) -> Head:
        """Where the log stands now."""
        self._check("head")
        if self._head_failures:
            raise self._head_failures.pop()
        last = self.facts[-1] if self.facts else None
        return Head(
            epoch=max(self.epoch, last.epoch if last else 0),
            serial=last.serial if last else 0,
            digest=last.digest if last else EMPTY,
            boots=self._boots,
            positions=dict(self._positions),
            allocated=dict(self._allocated),
        )

    def commit(self, facts: Sequence[Fact], receipts: Sequence[Receipt]) -> None:
        """Keep all of these or none."""
        self._check("commit")
        failure, self._failure = self._failure, None
        if failure is not None:
            self._head_failures = [failure[0]] * failure[2]
            if not failure[1]:
                raise failure[0]
        check_follow(facts, len(self.facts), self.facts[-1].digest if self.facts else EMPTY)
        self.commits += 1
        for fact in facts:
            stream = self._by_stream.setdefault(fact.stream, [])
            if stream and fact.token < stream[-1].token:
                stream.insert(bisect_right(stream, fact.token, key=_token), fact)
            else:
                stream.append(fact)
            self._allocated[fact.stream] = max(fact.token, self._allocated.get(fact.stream, fact.token))
        advance(self._positions, facts)
        self.facts.extend(facts)
        self.receipts.update((receipt.key, receipt) for receipt in receipts)
        if failure is not None:
            raise failure[0]

    def read(
        self, *, after: int, upto: int, streams: Collection[str] | None, limit: int
    ) -> tuple[list[Fact], int]:
        """Facts in order of serial, and how far it has looked."""
        self._check("read")
        upto = min(upto, len(self.facts))
        found = self.facts[max(after, 0) : max(upto, 0)]
        if streams is not None:
            found = [fact for fact in found if fact.stream in streams]
        taken, is_full = take_rows(found, limit)
        return taken, taken[-1].serial if is_full else max(after, upto)

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
                and not self._voids.hold(fact)
            ),
            limit,
        )

    def held(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        """The writer and the rows of every fact of this stream under this token."""
        self._check("held")
        facts = self._by_stream.get(stream, [])
        first, last = bisect_left(facts, token, key=_token), bisect_right(facts, token, key=_token)
        return [(fact.writer, fact.rows) for fact in facts[first:last] if not self._voids.hold(fact)]

    def lose(self, stream: str, upto: int) -> Head:
        """Begin a new epoch: of this stream, what is beyond `upto` was lost where it came from."""
        self._check("lose")
        self.epoch = self.head().epoch + 1
        self._voids.add(stream, Void(self.epoch, upto))
        for place, token in self._positions.items():
            if place[0] == stream:
                self._positions[place] = min(token, upto)
        if stream in self._allocated:
            self._allocated[stream] = min(upto, self._allocated[stream])
        return self.head()

    def receipt(self, key: str) -> Receipt | None:
        """What an append with this key was answered."""
        self._check("receipt")
        return self.receipts.get(key)

    def forget_receipts(self, before_ms: int) -> None:
        """Forget the answers given before then."""
        self._check("forget_receipts")
        self.receipts = {key: kept for key, kept in self.receipts.items() if kept.at_ms >= before_ms}

    def close(self) -> None:
        """Let go. Harmless when repeated."""
        self._is_open = False

    def _check(self, op: str) -> None:
        if not self._is_open:
            raise StorageError(op=op, why="the log is not open")


def _token(fact: Fact) -> int:
    return fact.token
