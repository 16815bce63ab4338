"""Problems with a stream's ids in the database, and their repair.

Ids come from a sequence of the database, and a sequence is no part of the rows that use its ids: a restored
dump, a replica of PostgreSQL that was promoted, or a hand that set it, can leave the sequence behind the rows
or behind the positions that writers have stored. The next id would then be one that was used. A reader that
has seen the old fact of that id skips the new one for ever, silently, because to it the token is no news.
That is what must not happen, and it can only be found before the first new id is given: at start.

Three witnesses say how far ids have come: the sequence, the highest row, and the stored positions. A fourth,
`seen`, is what a reader is known to have. Whatever is behind the highest of them is raised to it. If only the
readers have seen the highest ids, rows are gone that no repair brings back: ids continue above all that
anybody has seen, so that no token stands for two facts, and it is said that facts are lost.

Generators and daemons that read the tables run these checks when they start, ``synrepl doctor`` on request. A
generator repairs every problem that has lost no facts, and logs a warning; not about an unused sequence.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.worker_database import ICursor

Kind = Literal[
    "sequence_behind_tables", "sequence_behind_positions", "sequence_unused", "unknown_writer", "history_lost"
]


class IdProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem. Its repair raises the sequence to `after` or above, or deletes the position of `writer`."""

    kind: Kind
    stream: str
    text: str
    before: int = 0
    after: int = 0
    writer: str = ""

    @property
    def is_loss(self) -> bool:
        """Whether history that a reader has seen is gone; no repair can bring it back."""
        return self.kind == "history_lost"


class IdProblems(msgspec.Struct, frozen=True, kw_only=True):
    """The result of examining a stream. The repair raises the sequence to at least `goal`."""

    allocated: int
    positions: Mapping[str, int]
    goal: int
    found: list[IdProblem]


def examine(cursor: ICursor, database: IdDatabase, *, seen: int = 0) -> IdProblems:
    """Find problems, without changes. `seen` is the highest token (ascending) that a reader is known to have.

    Raises `StorageError` if the stream's sequence does not exist.
    """
    stream = database.stream
    highest = database.highest_row(cursor)
    positions = database.positions(cursor)
    # Last: others may be writing, and the sequence must be ahead of all that was read before.
    allocated = database.allocated(cursor)
    found: list[IdProblem] = []

    def add(kind: Kind, text: str, *, before: int, after: int = 0, writer: str = "") -> None:
        found.append(
            IdProblem(kind=kind, stream=stream.name, text=text, before=before, after=after, writer=writer)
        )

    def check_sequence(kind: Kind, goal: int, what: str) -> None:
        if allocated < goal:
            text = (
                f"sequence {stream.sequence} is at {allocated}, behind {what} ({goal}); without a repair it"
            )
            add(kind, f"{text} would reuse ids", before=allocated, after=goal)

    check_sequence("sequence_behind_tables", highest, "the rows of its tables")
    stored = max(positions.values(), default=0)
    check_sequence("sequence_behind_positions", stored, "the stored positions of its writers")
    known = max(allocated, highest, stored)
    if seen > known:
        add(
            "history_lost",
            f"readers have seen ids up to {seen}, but the database has none beyond {known}: it is older than"
            " the readers (restored from a dump?), and the facts between are lost",
            before=known,
            after=seen,
        )
    # Position 1 means "nothing yet": a fact with id 1 would count as seen.
    goal = max(known, seen, 1)
    if goal == 1 > allocated:
        text = f"sequence {stream.sequence} would give id 1, which readers count as already read"
        add("sequence_unused", text, before=allocated, after=1)
    for writer in sorted(set(positions) - set(stream.writers)) if stream.writers else ():
        at = positions[writer]
        text = f"{writer} has a position ({at}), but is none of the configured writers"
        add("unknown_writer", f"{text} ({', '.join(stream.writers)})", before=at, writer=writer)
    return IdProblems(allocated=allocated, positions=positions, goal=goal, found=found)


def repair(cursor: ICursor, database: IdDatabase, examined: IdProblems) -> None:
    """Repair the problems, in this transaction."""
    if examined.allocated < examined.goal:
        database.advance_sequence(cursor, examined.goal)
    for problem in examined.found:
        if problem.kind == "unknown_writer":
            database.delete_position(cursor, problem.writer)
