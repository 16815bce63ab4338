"""Recorded runs of a real generator, replayed step by step.

The recordings are those of Synapse 1.163's `MultiWriterIdGenerator`; `tests/ids/golden/README.md` explains
their fields. Where ours is meant to be better, `BETTER` lists the step, what the recording says, and what is
right.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synrepl.ids.generator import MultiWriterIdGenerator, NotAWriter
from synrepl.ids.transactions import transact
from tests.ids.databases import IdCase

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("A", "B", "C", "new")

STRANGER = "a stranger's name becomes a writer"
REFUSES = "stream_positions beyond the sequence"


def state(cur: int, minimal: int, mine: int, by: dict[str, int], pos: dict[str, int]) -> dict[str, Any]:
    return {"cur": cur, "min": minimal, "mine": mine, "by": by, "pos": pos}


BETTER: dict[tuple[str, int], dict[str, Any]] = {
    # A name that is no writer cannot hold up the linear position: it moves on with the real writers, A (idle)
    # and B. The recording stays at 2, where the stranger was last heard of.
    (STRANGER, 3): {
        "A": state(4, 1, 4, {"B": 4, "C": 4, "new": 4}, {"A": 1, "B": 4, "stranger": 2}),
    },
    (STRANGER, 4): {
        "A": state(6, 1, 6, {"B": 6, "C": 6, "new": 6}, {"A": 1, "B": 6, "stranger": 2}),
    },
    (STRANGER, 5): {
        "A": state(8, 1, 8, {"B": 8, "C": 8, "new": 8}, {"A": 1, "B": 8, "stranger": 2}),
    },
    # A stored position beyond the sequence is mended (one warning), where the recording refuses to start.
    (REFUSES, 2): {
        "A": state(9, 9, 9, {"B": 9, "C": 9, "new": 9}, {"A": 9}),
    },
}


class _RolledBack(Exception):
    """Ends a transaction that is to be rolled back."""


class Replay(IdCase):
    """One recording at a time, in a database of its own each."""

    def replay(self, recording: str) -> int:
        """Replay a file; how many steps that were."""
        steps = 0
        for scenario, recorded in _scenarios(GOLDEN / recording):
            with self.subTest(scenario):
                self._begin(scenario)
                for step in recorded:
                    self._step(step)
                    steps += 1
        return steps

    def _begin(self, scenario: str) -> None:
        self.do("DELETE FROM facts_of_things")
        self.do("DELETE FROM stream_positions")
        self.set_sequence(1)
        self.negative = "negative" in scenario
        self.generators: dict[str, MultiWriterIdGenerator] = {}
        self.handles: dict[str, tuple[str, Any, Any]] = {}

    def _step(self, recorded: dict[str, Any]) -> None:
        scenario, number = recorded["scenario"], recorded["step"]
        better = BETTER.get((scenario, number))

        result = self._do(recorded["op"])

        self.assertEqual(
            (better or recorded["state"], recorded["table"]),
            (self._state(), self.get_positions()),
            f"{scenario}, step {number}: {recorded['op']}",
        )
        if not isinstance(recorded["result"], str):
            self.assertEqual(recorded["result"], result, f"{scenario}, step {number}")
        elif recorded["result"].startswith("error: Exception: Tried to allocate"):
            self.assertIsInstance(result, NotAWriter)
        else:
            self.assertTrue(better or recorded["result"] == result, recorded)

    def _do(self, op: list[Any]) -> Any:
        kind, *given = op
        return getattr(self, f"_do_{kind}")(*given)

    def _do_new(self, name: str, writers: list[str]) -> None:
        self.generators[name] = self.started(name, writers, negative=self.negative)

    def _do_next(self, handle: str, name: str, count: int) -> Any:
        context = self.generators[name].next_many(count)
        try:
            tokens = self.wait(context.__aenter__())
        except NotAWriter as error:
            return error
        self.handles[handle] = (name, context, tokens)
        return list(tokens)

    def _do_ok(self, handle: str) -> None:
        name, context, tokens = self.handles.pop(handle)
        self.interact(lambda cursor: self.insert(cursor, tokens, name))
        self.wait(context.__aexit__(None, None, None))

    def _do_fail(self, handle: str) -> None:
        _, context, _ = self.handles.pop(handle)
        self.wait(context.__aexit__(_RolledBack, _RolledBack(), None))

    def _do_txn(self, name: str, count: int, *, fails: bool = False) -> Any:
        def work(transaction: Any) -> list[int]:
            with self.generators[name].within(transaction, count) as tokens:
                self.insert(transaction, tokens, name)
            if fails:
                raise _RolledBack
            return list(tokens)

        return self.wait(transact(self.pool, work))

    def _do_txnfail(self, name: str, count: int) -> str:
        with contextlib.suppress(_RolledBack):
            self._do_txn(name, count, fails=True)
        return "rolled back"

    def _do_adv(self, name: str, writer: str, token: int) -> None:
        self.generators[name].advance(writer, token, wrote=True)

    def _do_row(self, writer: str, token: int) -> None:
        self.row(writer, token)

    def _do_setpos(self, writer: str, token: int) -> None:
        self.set_position(writer, token)

    def _do_setval(self, value: int) -> None:
        self.set_sequence(value)

    def _state(self) -> dict[str, Any]:
        return {
            name: state(
                generator.persisted_upto,
                generator.minimal_token,
                generator.announced_token,
                {other: generator.position_of(other) for other in NAMES if other != name},
                generator.positions(),
            )
            for name, generator in self.generators.items()
        }

    def test_recorded_on_postgresql(self) -> None:
        """Every step gives the ids, the tokens, the positions and the stored rows that the real one gave."""
        self.assertEqual(600, self.replay("idgen_oracle_postgres_part.jsonl"))

    def test_recorded_on_sqlite(self) -> None:
        """The same for the one-writer runs that were recorded on SQLite."""
        self.assertEqual(299, self.replay("idgen_oracle_sqlite.jsonl"))


class SQLiteReplayTests(Replay):
    """On SQLite, the recordings of PostgreSQL included: its writers may be several as well."""


class PostgreSQLReplayTests(Replay):
    """On PostgreSQL."""

    flavor = "postgresql"


del Replay


def _scenarios(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    with path.open() as lines:
        for line in lines:
            step = json.loads(line)
            found[step["scenario"]].append(step)
    yield from found.items()
