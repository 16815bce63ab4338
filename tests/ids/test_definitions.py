"""The definitions of Synapse's streams document, held against any order of events.

The model knows what nobody in the system knows: every id, whose it is, and whether anything can still be
written under it. Positions may lag behind what is true; they must never run ahead of it.
"""

from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from synrepl.errors import StorageError
from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.tracker import Tracker
from synrepl.ids.transactions import transact
from synrepl.ids.writer_session import WriterSession
from synrepl.storage.id_tables.id_start import IdStart
from synrepl.storage.threads import ImmediateThread
from tests.ids.databases import IdCase

WRITERS = ["A", "B", "C"]


class WorkedExampleTests(IdCase):
    """The example of the streams document: one writer, initially at 1."""

    def test_the_table_of_the_document(self) -> None:
        """Completing 3 before 2 moves nothing, completing 2 then jumps to 3, and so on."""
        tracker = Tracker("w", ["w"], IdStart(positions={"w": 1}, persisted_upto=1))
        table = [
            ("reserve", 2, 1),
            ("reserve", 3, 1),
            ("complete", 3, 1),
            ("complete", 2, 3),
            ("reserve", 4, 3),
            ("reserve", 5, 3),
            ("reserve", 6, 3),
            ("complete", 5, 3),
            ("complete", 4, 5),
            ("complete", 6, 6),
        ]

        seen = []
        for action, number, _ in table:
            if action == "reserve":
                tracker.end_reservation(tracker.begin_reservation(), [number])
            else:
                tracker.finish([number])
            seen.append((action, number, tracker.minimal))
            self.assertEqual(tracker.minimal, tracker.persisted_upto)

        self.assertEqual(table, seen)

    def test_an_id_being_asked_for_holds_the_position(self) -> None:
        """Between asking the database and its answer another id may finish: it must not be passed over."""
        tracker = Tracker("w", ["w", "v"], IdStart(positions={"w": 1, "v": 1}, persisted_upto=1))
        asking = tracker.begin_reservation()
        tracker.end_reservation(tracker.begin_reservation(), [3])

        tracker.finish([3])

        self.assertEqual((1, 1), (tracker.minimal, tracker.announced))
        tracker.end_reservation(asking, [2])
        tracker.finish([2])
        self.assertEqual((3, 3), (tracker.minimal, tracker.announced))

    def test_a_position_does_not_complete_its_last_id(self) -> None:
        """A writer that starts where the sequence stands may announce an id that is another's, unfinished."""
        reader = Tracker("r", ["w", "v"], IdStart(positions={"w": 9, "v": 9}, persisted_upto=9))

        reader.advance("v", 10)

        self.assertEqual(9, reader.persisted_upto)
        reader.advance("w", 10)
        self.assertEqual(10, reader.persisted_upto)

    def test_what_is_unfinished_here_holds_the_linear_position(self) -> None:
        """However far the others are; once nothing is, an idle writer holds up nobody."""
        tracker = Tracker("w", ["w", "v"], IdStart(positions={"w": 1, "v": 1}, persisted_upto=1))
        tracker.end_reservation(tracker.begin_reservation(), [2])

        tracker.advance("v", 9)

        self.assertEqual((1, 1), (tracker.persisted_upto, tracker.announced))
        tracker.finish([2])
        self.assertEqual((9, 9), (tracker.persisted_upto, tracker.announced))

    def test_a_stranger_holds_up_nobody(self) -> None:
        """A writer that was renamed tells nothing any more; its old name is heard once more, late."""
        reader = Tracker("r", ["w", "v"], IdStart(positions={"w": 9, "v": 9}, persisted_upto=9))

        reader.advance("stranger", 4)
        reader.advance("w", 12)
        reader.advance("v", 11)

        self.assertEqual(11, reader.persisted_upto)
        self.assertEqual({"w": 12, "v": 11, "stranger": 4}, reader.positions())


class _Process:
    """One life of a writer."""

    def __init__(self, generator: MultiWriterIdGenerator) -> None:
        self.generator = generator
        self.open: list[tuple[Any, list[int]]] = []
        self.before: tuple[int, ...] = ()


class _Machine(RuleBasedStateMachine):
    """Three writers, in any order of reserving, finishing, hearing of each other, and dying."""

    flavor: ClassVar[str] = "sqlite"

    @initialize(negative=st.booleans())
    def begin(self, negative: bool) -> None:
        self.case = IdCase()
        self.case.flavor = self.flavor  # type: ignore[assignment]
        self.case.setUp()
        self.sign = -1 if negative else 1
        self.owners: dict[int, str] = {}
        self.pending: set[int] = set()
        self.last_written = 1
        self.processes: dict[str, _Process] = {}
        for name in WRITERS:
            self._start(name)

    def teardown(self) -> None:
        if hasattr(self, "case"):
            self.case.doCleanups()

    def _start(self, name: str) -> None:
        generator = self.case.started(name, WRITERS, negative=self.sign < 0)
        # A writer's session stores its position as it starts.
        self.case.interact(generator.store_position)
        self.processes[name] = _Process(generator)

    def _took(self, name: str, tokens: Any) -> list[int]:
        ids = [token * self.sign for token in tokens]
        assert ids == sorted(ids)
        for taken in ids:
            assert taken not in self.owners, "an id was given twice"
            for other in self.processes.values():
                generator = other.generator
                known = generator.position_of(name) if other is not self.processes[name] else 0
                assert taken > known * self.sign, f"{name} got {taken}, below its position"
                assert taken > generator.persisted_upto * self.sign, f"{taken} is below the linear position"
            self.owners[taken] = name
        self.pending.update(ids)
        return ids

    # -- what happens --------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(WRITERS), count=st.integers(1, 3))
    def reserve(self, name: str, count: int) -> None:
        context = self.processes[name].generator.next_many(count)
        ids = self._took(name, self.case.wait(context.__aenter__()))
        self.processes[name].open.append((context, ids))

    @rule(name=st.sampled_from(WRITERS), which=st.integers(0, 9), fails=st.booleans())
    def finish(self, name: str, which: int, fails: bool) -> None:
        process = self.processes[name]
        if not process.open:
            return
        context, ids = process.open.pop(which % len(process.open))
        if not fails:
            tokens = [taken * self.sign for taken in ids]
            self.case.interact(lambda cursor: self.case.insert(cursor, tokens, name))
            self.last_written = max(self.last_written, *ids)
        self.pending.difference_update(ids)
        error = ValueError("no") if fails else None
        self.case.wait(context.__aexit__(type(error) if error else None, error, None))

    @rule(name=st.sampled_from(WRITERS), count=st.integers(1, 3), fails=st.booleans())
    def write_within(self, name: str, count: int, fails: bool) -> None:
        def work(transaction: Any) -> None:
            with self.processes[name].generator.within(transaction, count) as tokens:
                ids.extend(self._took(name, tokens))
                self.case.insert(transaction, tokens, name)
            self.pending.difference_update(ids)
            if fails:
                raise KeyError

        ids: list[int] = []
        if fails:
            with pytest.raises(KeyError):
                self.case.wait(transact(self.case.pool, work))
        else:
            self.case.wait(transact(self.case.pool, work))
            self.last_written = max(self.last_written, *ids)

    @rule(hears=st.sampled_from(WRITERS), of=st.sampled_from(WRITERS))
    def hear_position(self, hears: str, of: str) -> None:
        if hears != of:
            token = self.processes[of].generator.announced_token
            self.processes[hears].generator.advance(of, token)

    @rule(name=st.sampled_from(WRITERS))
    def beat(self, name: str) -> None:
        generator = self.processes[name].generator
        generator.merge_positions(self.case.interact(generator.database.positions))
        self.case.interact(generator.store_position)

    @rule(name=st.sampled_from(WRITERS))
    def crash_and_start_again(self, name: str) -> None:
        for _, ids in self.processes[name].open:
            self.pending.difference_update(ids)
        self._start(name)

    # -- what must hold ------------------------------------------------------------------------------------

    @invariant()
    @precondition(lambda self: hasattr(self, "processes"))
    def nothing_runs_ahead(self) -> None:
        first = min(self.pending, default=None)
        for process in self.processes.values():
            generator = process.generator
            upto = generator.persisted_upto * self.sign
            assert first is None or upto < first, f"linear position {upto}, but {first} is unfinished"
            for name in WRITERS:
                theirs = [taken for taken in self.pending if self.owners[taken] == name]
                position = generator.position_of(name) * self.sign
                assert not theirs or position < min(theirs), f"{name} is at {position}, not at {theirs}"

    @invariant()
    @precondition(lambda self: hasattr(self, "processes"))
    def own_position_is_exact(self) -> None:
        for name, process in self.processes.items():
            generator = process.generator
            minimal = generator.minimal_token * self.sign
            announced = generator.announced_token * self.sign
            mine = [taken for _, ids in process.open for taken in ids]
            assert minimal <= announced
            assert not mine or announced < min(mine)
            now = (minimal, announced, generator.persisted_upto * self.sign)
            assert all(a <= b for a, b in zip(process.before, now, strict=False)), "went back"
            process.before = now
            held = {taken for one in generator.unfinished() for taken in one.tokens}
            assert held == {taken * self.sign for taken in mine}
            assert name in generator.positions()

    @rule()
    def rest(self) -> None:
        """When everything is finished and everybody has heard of it, everybody has everything."""
        if self.pending:
            return
        for _ in range(3):
            for name in WRITERS:
                self.beat(name)
        for process in self.processes.values():
            assert process.generator.persisted_upto * self.sign >= self.last_written


class _UnnamedMachine(RuleBasedStateMachine):
    """A stream that names no writers, and two processes that would give its ids, in any order of starting,
    reserving, finishing, dying and ending. One at a time may."""

    @initialize()
    def begin(self) -> None:
        self.case = IdCase()
        self.case.setUp()
        self.sessions: dict[str, WriterSession] = {}
        self.processes: dict[str, _Process] = {}
        self.pending: set[int] = set()
        self.taken: set[int] = set()
        self.last_written = 1

    def teardown(self) -> None:
        if hasattr(self, "case"):
            for name in list(self.sessions):
                self.crash(name)
            self.case.doCleanups()

    @rule(name=st.sampled_from(["A", "B"]))
    def start(self, name: str) -> None:
        if name in self.sessions:
            return
        generator = self.case.generator(name, [])
        session = WriterSession(
            self.case.connect,
            [generator],
            instance=name,
            flavor=self.case.flavor,
            clock=self.case.clock,
            thread=ImmediateThread(),
            acquire_seconds=0,
        )
        if self.sessions:
            with pytest.raises(StorageError, match="names no writers"):
                self.case.wait(session.start())
            return
        self.case.wait(session.start())
        self.sessions[name] = session
        self.processes[name] = _Process(generator)
        assert generator.persisted_upto >= self.last_written

    @rule(name=st.sampled_from(["A", "B"]))
    def crash(self, name: str) -> None:
        session = self.sessions.pop(name, None)
        if session is None:
            return
        session._timer.stop()
        session._close()
        for _, ids in self.processes.pop(name).open:
            self.pending.difference_update(ids)

    @rule(name=st.sampled_from(["A", "B"]), count=st.integers(1, 3))
    def reserve(self, name: str, count: int) -> None:
        if name not in self.processes:
            return
        context = self.processes[name].generator.next_many(count)
        ids = list(self.case.wait(context.__aenter__()))
        assert not self.taken.intersection(ids), "an id was given twice"
        self.taken.update(ids)
        self.pending.update(ids)
        self.processes[name].open.append((context, ids))

    @rule(name=st.sampled_from(["A", "B"]), which=st.integers(0, 9), fails=st.booleans())
    def finish(self, name: str, which: int, fails: bool) -> None:
        process = self.processes.get(name)
        if process is None or not process.open:
            return
        context, ids = process.open.pop(which % len(process.open))
        if not fails:
            self.case.interact(lambda cursor: self.case.insert(cursor, ids, name))
            self.last_written = max(self.last_written, *ids)
        self.pending.difference_update(ids)
        error = ValueError("no") if fails else None
        self.case.wait(context.__aexit__(type(error) if error else None, error, None))

    @invariant()
    @precondition(lambda self: hasattr(self, "processes"))
    def nothing_runs_ahead(self) -> None:
        first = min(self.pending, default=None)
        for process in self.processes.values():
            upto = process.generator.persisted_upto
            assert first is None or upto < first, f"linear position {upto}, but {first} is unfinished"
            assert self.pending or upto >= self.last_written


class UnnamedDefinitionTests(_UnnamedMachine.TestCase):  # type: ignore[misc, valid-type]  # made so
    """Never ahead of the truth, where no writers are named."""

    settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


class SQLiteMachine(_Machine):
    """On SQLite."""


class PostgreSQLMachine(_Machine):
    """On PostgreSQL."""

    flavor = "postgresql"


class SQLiteDefinitionTests(SQLiteMachine.TestCase):  # type: ignore[misc, valid-type]  # made so
    """Never ahead of the truth, on SQLite."""

    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class PostgreSQLDefinitionTests(PostgreSQLMachine.TestCase):  # type: ignore[misc, valid-type]  # made so
    """Never ahead of the truth, on PostgreSQL."""

    settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
