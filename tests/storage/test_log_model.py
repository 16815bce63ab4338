"""Whatever happens, in whatever order: the rules of serials, tokens, chains and digests hold."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.errors import StorageError
from synrepl.ports.interfaces import Appended
from synrepl.storage import DelayedThread, KeyReused, Log, MemoryEngine
from synrepl.storage.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from tests.storage.builders import DISK_FULL, NOW, rows

Asked = tuple[str, str, tuple[bytes, ...]]


class LogMachine(RuleBasedStateMachine):
    """A log on a slow thread, killed and failed at will, beside what its clients know."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.clock.advance(NOW)
        self.engine = MemoryEngine()
        self.count = 0
        # What clients were told, and whether it can be stored nevertheless.
        self.acknowledged: list[tuple[Asked, Appended]] = []
        self.failed: list[Asked] = []
        self.keys: dict[str, tuple[Asked, Appended]] = {}
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
        self.log.watch(self.shown.extend)

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
                assert answer.check(StorageError)
                if answer.check(KeyReused):
                    return
                if "may have been kept" not in str(answer.value) and key is None:
                    self.failed.append(asked)
                return
            if key is not None:
                assert self.keys.setdefault(key, (asked, answer)) == (asked, answer)
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
        assert self.log.serial == len(self.shown)
        assert self.log.digest == (self.shown[-1].digest if self.shown else EMPTY)

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


LogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
LogModelTests = LogMachine.TestCase
