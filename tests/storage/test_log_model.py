"""Whatever happens, in whatever order: the rules of serials, tokens, chains and digests hold."""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.history import Appended
from synrepl.errors import StorageError
from synrepl.storage.append_errors import KeyReused
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.postgres import PostgresDatabase
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.testing.heap_clock import HeapClock
from synrepl.testing.memory_engine import DelayedThread
from tests.memory_engine import FaultyEngine
from tests.postgres import new_database
from tests.storage.builders import DISK_FULL, NOW, rows

Asked = tuple[str, str, tuple[bytes, ...]]


class LogMachine(RuleBasedStateMachine):
    """A log on a slow thread, killed and failed at will, beside what its clients know."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HeapClock()
        self.clock.advance(NOW)
        self.engine = FaultyEngine()
        self.count = 0
        # What clients were told, and whether it can be stored nevertheless.
        self.acknowledged: list[tuple[Asked, Appended]] = []
        self.failed: list[Asked] = []
        self.keys: dict[tuple[str, str], tuple[Asked, Appended]] = {}
        self.wrong: list[str] = []
        self.shown: list[Fact] = []
        self.boot()

    def boot(self) -> None:
        """A process starts over what is durable."""
        self.writing = DelayedThread(self.clock, lambda: 0.1)
        self.reading = DelayedThread(self.clock, lambda: 0.1)
        quiet = Logger(observer=lambda event: None)  # type: ignore[arg-type]
        self.log = Log(
            self.engine,
            self.writing,
            self.reading,
            self.clock,
            ephemeral=["typing"],
            max_batch_bytes=2500,
            logger=quiet,
        )
        started = Deferred.fromCoroutine(self.log.start())
        self.clock.advance(0.1)
        assert started.called
        # Followers of the new process begin where it begins.
        self.shown = self.engine.facts[:]
        self.log.subscribe(self.shown.extend)

    @rule(
        stream=st.sampled_from(["events", "caches"]),
        writer=st.sampled_from(["w1", "w2", "w3"]),
        count=st.integers(1, 4),
        key=st.none() | st.sampled_from("abc"),
    )
    def append(self, stream: str, writer: str, count: int, key: str | None) -> None:
        """A client asks, and notes what it is told."""
        if key is None:
            # With a key the same is asked now and then, without one each fact is another.
            self.count += 1
        content = tuple(rows(key or self.count, n) for n in range(count))
        asked = (stream, writer, content)

        def told(answer: Any) -> None:
            if isinstance(answer, Failure):
                if not answer.check(StorageError):
                    self.wrong.append(str(answer))
                if answer.check(KeyReused):
                    return
                if "may have been stored" not in str(answer.value) and key is None:
                    self.failed.append(asked)
                return
            if key is not None and self.keys.setdefault((key, stream), (asked, answer)) != (asked, answer):
                self.wrong.append(f"the key {key} gave {asked} and {answer}")
            self.acknowledged.append((asked, answer))

        Deferred.addBoth(self.log.append(stream, writer, content, key=key), told)

    @rule(steps=st.integers(1, 15))
    def time_passes(self, steps: int) -> None:
        """Commits end; doubts are settled."""
        self.clock.pump([0.1] * steps)

    @rule(kept=st.booleans(), silent=st.integers(0, 3))
    def the_next_commit_fails(self, kept: bool, silent: int) -> None:
        """Before anything is kept or after all of it was, and the engine may say nothing for a while."""
        self.engine.fail_next(DISK_FULL, kept=kept, silent=silent)

    @rule()
    def the_process_is_killed(self) -> None:
        """What was not answered never is; what was durable stays."""
        for thread in (self.writing, self.reading):
            Deferred.fromCoroutine(thread.stop())
        self.engine.crash()
        self.boot()

    @invariant()
    def history_is_one_chain(self) -> None:
        """Serials dense, tokens one sequence a stream, each writer chained, the digest right."""
        last: dict[str, int] = {}
        positions: dict[tuple[str, str], int] = {}
        for serial, fact in enumerate(self.engine.facts, 1):
            assert fact.serial == serial
            assert fact.token == last.get(fact.stream, 0) + 1
            assert fact.prev_token == positions.get((fact.stream, fact.writer), 0)
            last[fact.stream] = positions[fact.stream, fact.writer] = fact.token
        assert verify(self.engine.facts, EMPTY) is None

    @invariant()
    def answers_are_right(self) -> None:
        """What a callback raised, nobody would see."""
        assert self.wrong == []

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        """Whole, side by side, under the tokens that were told."""
        for (stream, writer, content), answer in self.acknowledged:
            assert answer.first_serial is not None
            found = self.engine.facts[answer.first_serial - 1 :][: len(content)]
            assert [(f.stream, f.writer, f.rows) for f in found] == [(stream, writer, r) for r in content]
            assert [fact.token for fact in found] == answer.tokens

    @invariant()
    def what_failed_is_not(self) -> None:
        """Unless the client was told that it may be."""
        stored = {fact.rows for fact in self.engine.facts}
        for _, _, content in self.failed:
            assert stored.isdisjoint(content)

    @invariant()
    def followers_see_what_is_stored(self) -> None:
        """In order, nothing twice and nothing left out."""
        assert self.shown == self.engine.facts[: len(self.shown)]
        assert self.log.head.serial == len(self.shown)
        assert self.log.head.digest == (self.shown[-1].digest if self.shown else EMPTY)

    def teardown(self) -> None:
        """At rest everything durable was shown, and the log works again."""
        if self.engine.facts or self.count:
            self.clock.pump([0.1] * 100)
            assert self.shown == self.engine.facts
            answer = self.log.append("events", "w1", [rows("last")])
            self.clock.pump([0.1] * 20)
            if self.log.healthy[0]:
                assert answer.called
                answer.addErrback(lambda failure: None)


EXAMPLES: Final = settings().max_examples * 3 // 2

LogMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
LogModelTests = LogMachine.TestCase


Given = tuple[str, int, bytes]
Told = tuple[str, int, int, bytes]

UNORDERED = {"backfill", "both"}
ANY_WRITER = {"lists", "both"}

givens = st.lists(
    st.tuples(
        st.sampled_from(["w1", "w2"]), st.integers(0, 9), st.sampled_from([rows("a"), rows("b"), NO_ROWS])
    ),
    min_size=1,
    max_size=6,
)


class Model:
    """What a log is to hold of one stream: ``(writer, prev_token, token, rows)`` and whether each counts."""

    def __init__(self, stream: str) -> None:
        self.is_unordered = stream in UNORDERED
        self.is_any_writer = stream in ANY_WRITER
        self.is_kept = stream != "typing"
        self.told: list[Told] = []
        self.counts: list[bool] = []
        self.positions: dict[str, int] = {}

    def held(self) -> list[Told]:
        return [told for told, counts in zip(self.told, self.counts, strict=True) if counts]

    def adopt(self, writer: str, token: int, content: bytes) -> bool:
        """The rules, said as plainly as they can be."""
        begins = self.is_kept and writer not in self.positions and (token, content) == (0, NO_ROWS)
        position = self.positions.get(writer, 0)
        is_late = token <= position and not begins
        same = {who for who, _, at, what in self.held() if (at, what) == (token, content)}
        if is_late and (not self.is_unordered or writer in same or token == 0):
            return False
        if self.is_any_writer and same - {writer}:
            content = NO_ROWS
        if is_late and content == NO_ROWS:
            return False
        self.told.append((writer, token if is_late else position, token, content))
        self.counts.append(True)
        self.positions[writer] = max(position, token)
        return True

    def append(self, writer: str, content: bytes) -> None:
        self.adopt(writer, max(self.positions.values(), default=0) + 1, content)

    def lose(self, upto: int) -> None:
        self.counts = [
            counts and told[2] <= upto for told, counts in zip(self.told, self.counts, strict=True)
        ]
        self.positions = {writer: min(token, upto) for writer, token in self.positions.items()}

    def restart(self, writer: str) -> None:
        self.told = [told for told in self.told if told[0] != writer]
        self.counts = [True] * len(self.told)
        self.positions[writer] = 0


class AdoptMachine(RuleBasedStateMachine):
    """A log that is given facts with tokens, and a model that is given the same."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HeapClock()
        self.clock.advance(NOW)
        self.kept = {stream: Model(stream) for stream in ("events", "backfill", "lists", "both")}
        self.typing = Model("typing")
        self.typing_shown: list[Told] = []
        self.is_at_rest = True
        self.boot()

    def again(self) -> SQLEngine:
        """The engine of the next process."""
        raise NotImplementedError

    def boot(self) -> None:
        self.engine = self.again()
        self.log = Log(
            self.engine,
            DelayedThread(self.clock, lambda: 0.1),
            DelayedThread(self.clock, lambda: 0.1),
            self.clock,
            ephemeral=["typing"],
            unordered=UNORDERED,
            any_writer=ANY_WRITER,
            max_batch_bytes=2500,
            logger=Logger(observer=lambda event: None),  # type: ignore[arg-type]
        )
        self.run(self.log.start())
        self.log.subscribe(self.shown)

    def shown(self, facts: Any) -> None:
        self.typing_shown += [_told(fact) for fact in facts if fact.stream == "typing"]

    def run(self, work: Any) -> Any:
        """What came of it; everything that was asked before is done by then."""
        done: Deferred[Any] = Deferred.fromCoroutine(work)
        results: list[Any] = []
        done.addBoth(results.append)
        while not results:
            self.clock.advance(0.1)
        assert not isinstance(results[0], Failure), results[0].getTraceback()
        return results[0]

    @rule(stream=st.sampled_from(["events", "backfill", "lists", "both"]), facts=givens)
    def adopt(self, stream: str, facts: list[Given]) -> None:
        """It is durable some time later; the next may come before that."""
        model = self.kept[stream]
        expected = [token for writer, token, content in facts if model.adopt(writer, token, content)]
        self.is_at_rest = False
        self.log.append_assigned(stream, facts).addCallback(self.check_answer, expected)

    def check_answer(self, answer: Appended, expected: list[int]) -> None:
        """The tokens of what was news."""
        assert answer.tokens == expected

    @rule(stream=st.sampled_from(["events", "backfill", "lists", "both"]), content=st.sampled_from("ab"))
    def append(self, stream: str, content: str) -> None:
        """Nobody does both on one stream; but it is well defined."""
        self.kept[stream].append("w3", rows(content))
        self.is_at_rest = False
        self.log.append(stream, "w3", [rows(content)])

    @rule(facts=givens)
    def adopt_in_memory(self, facts: list[Given]) -> None:
        """At once."""
        model, before = self.typing, len(self.typing.told)
        expected = [token for writer, token, content in facts if model.adopt(writer, token, content)]
        answers: list[Appended] = []
        self.typing_shown.clear()

        self.log.append_assigned("typing", facts).addCallback(answers.append)

        assert [answer.tokens for answer in answers] == [expected]
        assert self.typing_shown == model.told[before:]

    @rule(writer=st.sampled_from(["w1", "w2", "w3"]))
    def append_in_memory(self, writer: str) -> None:
        """After the highest."""
        self.typing.append(writer, rows("c"))
        self.log.append("typing", writer, [rows("c")])

    @rule(writer=st.sampled_from(["w1", "w2"]))
    def restart(self, writer: str) -> None:
        """A writer that keeps nothing begins anew."""
        self.typing.restart(writer)
        self.typing_shown.clear()

        self.log.reset_writer("typing", writer)

        assert self.typing_shown == [(writer, 0, 0, NO_ROWS)]

    @rule(stream=st.sampled_from(["events", "backfill", "lists"]), upto=st.integers(1, 9))
    def lose(self, stream: str, upto: int) -> None:
        """History goes where it came from."""
        self.kept[stream].lose(upto)
        self.run(self.log.epochs.begin_next("lost", stream=stream, token=upto))
        self.is_at_rest = True

    @rule()
    def rest(self) -> None:
        """Everything is durable."""
        self.clock.pump([0.1] * 60)
        assert self.log._committer.pending_bytes == 0
        self.is_at_rest = True

    @rule()
    def reopen(self) -> None:
        """In order: what was asked for is kept."""
        self.run(self.log.stop())
        self.is_at_rest = True
        self.typing = Model("typing")
        self.boot()

    @invariant()
    def memory_is_as_it_should_be(self) -> None:
        """Ephemeral streams, at any time."""
        positions = self.typing.positions
        held = sorted((told for told in self.typing.told if told[3] != NO_ROWS), key=lambda told: told[2])
        assert self.log.positions("typing") == positions
        assert self.log.linear_position("typing") == max(positions.values(), default=0)
        assert [_told(fact) for fact in self.log.ephemeral.after("typing", 0)] == held

    @invariant()
    def what_is_kept_is_as_it_should_be(self) -> None:
        """The engine and the log agree on the order of serials and of tokens, positions, what is held."""
        if not self.is_at_rest:
            return
        facts, _ = self.engine.pages.facts(after=0, upto=self.log.head.serial, limit=10**6)
        assert verify(facts, EMPTY) is None
        head = self.engine.head()
        assert (head.serial, head.digest) == (self.log.head.serial, self.log.head.digest)
        for stream, model in self.kept.items():
            assert [_told(fact) for fact in facts if fact.stream == stream] == model.told
            found = {writer: token for (of, writer), token in head.positions.items() if of == stream}
            assert model.positions == found == self.log.positions(stream)
            highest = max(model.positions.values(), default=0)
            assert highest == head.allocated.get(stream, 0) == self.log.linear_position(stream)
            for token in range(12):
                under = [(who, what) for who, _, at, what in model.held() if at == token]
                assert self.engine.rows_at_token(stream, token) == under
            by_token, _ = self.engine.pages.tokens(
                stream=stream, writer=None, after=0, upto=10**6, serial=10**6, limit=10**6
            )
            readable = [told for told in model.held() if told[2]]
            assert [_told(fact) for fact in by_token] == sorted(readable, key=lambda told: told[2])

    def teardown(self) -> None:
        """The log ends well."""
        self.run(self.log.stop())


def _told(fact: Fact) -> Told:
    return (fact.writer, fact.prev_token, fact.token, fact.rows)


class MemoryAdoptMachine(AdoptMachine):
    """In memory: the same object again."""

    def __init__(self) -> None:
        self.memory = FaultyEngine()
        super().__init__()

    def again(self) -> SQLEngine:
        return self.memory


class SQLiteAdoptMachine(AdoptMachine):
    """On SQLite."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="synrepl-model-"))
        super().__init__()

    def again(self) -> SQLEngine:
        return SQLEngine(SQLiteDatabase(self.directory / "synrepl.db"))

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


class PostgresAdoptMachine(AdoptMachine):
    """On PostgreSQL."""

    def __init__(self) -> None:
        self.url = new_database()
        super().__init__()

    def again(self) -> SQLEngine:
        return SQLEngine(PostgresDatabase(self.url))


AdoptModelInMemoryTests = MemoryAdoptMachine.TestCase
AdoptModelOnSQLiteTests = SQLiteAdoptMachine.TestCase
AdoptModelOnPostgresTests = PostgresAdoptMachine.TestCase
AdoptModelInMemoryTests.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
AdoptModelOnSQLiteTests.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
AdoptModelOnPostgresTests.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
