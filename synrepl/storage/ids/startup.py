"""What is wrong with a stream's ids in the database, and what mends it.

One look serves the start of every generator and ``synrepl doctor``. A difference that cannot have lost
anything is mended with one warning; what may have lost history is said, and ids go on beyond whatever any
reader has seen, so that no token ever stands for two things.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from synrepl.storage.ids.database import IdDatabase
from synrepl.storage.ids.transactions import ICursor

__all__ = ["IdProblem", "IdProblems", "IdPosition", "examine", "mend", "stand"]

Kind = Literal[
    "sequence_behind_tables",
    "sequence_behind_positions",
    "sequence_unused",
    "unknown_writer",
    "history_lost",
]


class IdProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `before` and `after`: what mending changes the sequence or position from and
    to.
    """

    kind: Kind
    stream: str
    text: str
    before: int = 0
    after: int = 0
    writer: str = ""

    @property
    def is_loss(self) -> bool:
        """Whether history that somebody has seen is gone: mending cannot bring it back."""
        return self.kind == "history_lost"


class IdProblems(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at a stream found. `goal` is what the sequence must have given at least."""

    stream: str
    allocated: int
    highest_row: int
    positions: Mapping[str, int]
    goal: int
    found: list[IdProblem]


class IdPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process begins: what `Tracker` is built from. `own_row` is its highest row; 0 if it has none
    beyond the linear position.
    """

    positions: Mapping[str, int]
    persisted_upto: int
    own_row: int = 0


def examine(cursor: ICursor, database: IdDatabase, *, seen: int = 0) -> IdProblems:
    """Look, and change nothing. `seen` is the highest token that any reader, as a log, is known to have."""
    stream = database.stream
    highest = database.highest_row(cursor)
    positions = database.positions(cursor)
    # Last: others may be writing, and the sequence is ahead of whatever was seen before.
    allocated = database.allocated(cursor)
    found: list[IdProblem] = []

    def behind(kind: Kind, goal: int, what: str) -> None:
        if allocated < goal:
            found.append(
                IdProblem(
                    kind=kind,
                    stream=stream.name,
                    text=f"sequence {stream.sequence} stands at {allocated}, behind {what} ({goal});"
                    f" left so, it would give ids a second time",
                    before=allocated,
                    after=goal,
                )
            )

    behind("sequence_behind_tables", highest, "the rows of its tables")
    stored = max(positions.values(), default=0)
    behind("sequence_behind_positions", stored, "the positions stored of its writers")
    known = max(allocated, highest, stored)
    if seen > known:
        found.append(
            IdProblem(
                kind="history_lost",
                stream=stream.name,
                text=f"readers have seen ids up to {seen}, the database knows none beyond {known}: it is"
                f" older than they are (restored from a dump?), and what was written between is gone",
                before=known,
                after=seen,
            )
        )
    # Position 1 stands for "nothing yet": an id 1 would be one that everybody has.
    goal = max(known, seen, 1)
    if goal == 1 > allocated:
        found.append(
            IdProblem(
                kind="sequence_unused",
                stream=stream.name,
                text=f"sequence {stream.sequence} would begin with 1, which counts as seen",
                before=allocated,
                after=1,
            )
        )
    found += [
        IdProblem(
            kind="unknown_writer",
            stream=stream.name,
            text=f"{writer} has a position ({positions[writer]}), but is none of the writers configured"
            f" ({', '.join(stream.writers)})",
            before=positions[writer],
            writer=writer,
        )
        for writer in sorted(set(positions) - set(stream.writers))
        if stream.writers
    ]
    return IdProblems(
        stream=stream.name,
        allocated=allocated,
        highest_row=highest,
        positions=positions,
        goal=goal,
        found=found,
    )


def mend(cursor: ICursor, database: IdDatabase, findings: IdProblems) -> None:
    """Do what the findings ask for, in this transaction."""
    if findings.allocated < findings.goal:
        database.raise_to(cursor, findings.goal)
    for finding in findings.found:
        if finding.kind == "unknown_writer":
            database.forget_position(cursor, finding.writer)


def stand(cursor: ICursor, database: IdDatabase, instance: str | None) -> IdPosition:
    """Where a process of this name begins, once everything is mended; None stands for one who only reads.

    A writer has nothing unfinished at its start, so it stands where the sequence does, or at its last row if
    there is one beyond the linear position. That is the lowest of all, moved on over rows that follow without
    a hole; a writer that never wrote stands there too.

    Of a stream without writers it stands at the highest row: what the sequence gave beyond may be unfinished
    in another process.
    """
    stream = database.stream
    positions = {
        name: token
        for name, token in database.positions(cursor).items()
        if name in stream.writers or (not stream.writers and instance is None)
    }
    own_row = 0
    if instance is not None and not stream.writers:
        positions[instance] = max(1, database.highest_row(cursor))
    elif instance is not None and stream.is_writer(instance):
        positions[instance] = max(1, database.allocated(cursor))
    if positions:
        lowest = min(positions.values())
        upto = database.end_of_run(cursor, lowest)
        if instance in positions and instance is not None:
            own_row = database.last_row_of(cursor, instance, lowest) or 0
            positions[instance] = own_row or positions[instance]
    else:
        upto = max(database.highest_row(cursor), 1)
    for writer in stream.writers:
        positions.setdefault(writer, upto)
    return IdPosition(positions=positions, persisted_upto=upto, own_row=own_row)
