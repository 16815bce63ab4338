"""Stalls: writers that keep a stream from advancing, because they are stuck, silent or behind."""

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec

from synrepl.errors import StorageError
from synrepl.homeserver.doctor.synapse import read_catalog
from synrepl.storage.databases import Database
from synrepl.storage.id_tables.writers import STUCK_SECONDS, WriterState, read_writers
from synrepl.streams.writer import Writer

SILENT_SECONDS: Final = 15.0
"""A writer that stored no status for so many seconds is gone, or cannot reach its database."""

Positions = Mapping[str, Mapping[str, int]]
"""Positions by stream and writer, in ascending numbers."""


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One writer that holds up one stream.

    `why`: ``unfinished`` (it has `unfinished` ids reserved but not finished; the first, `first_id`, was
    reserved `age_seconds` ago by `owner`), ``silent`` (no status for `age_seconds`) or ``behind`` (its
    position is the lowest, `behind` below the highest of its stream). `is_stuck`: it needs intervention.
    """

    stream: str
    writer: str
    why: Literal["unfinished", "silent", "behind"]
    is_stuck: bool
    text: str
    position: int | None = None
    behind: int = 0
    unfinished: int = 0
    first_id: int | None = None
    age_seconds: float | None = None
    owner: str | None = None
    process: str | None = None


def find_stalls(states: Iterable[WriterState], positions: Positions, now: float) -> list[Stall]:
    """The stalls, ordered by stream, stuck writers first. `now` is in seconds since 1970."""
    found: list[Stall] = []
    for state in states:
        of_stream = positions.get(state.stream, {})
        behind = max(of_stream.values(), default=state.position) - state.position
        found += _of_writer(state, behind, now)
    stuck = {Writer(stall.stream, stall.writer) for stall in found if stall.is_stuck}
    for stream, of_stream in positions.items():
        found += _behind(stream, of_stream, stuck)
    return sorted(found, key=lambda stall: (stall.stream, not stall.is_stuck))


def read_stalls(database: Database, now: float) -> list[Stall]:
    """Read the stalls in this database. Raises `StorageError`, also if it lacks both tables of writers."""

    def work(cursor: Any) -> list[Stall]:
        tables = read_catalog(cursor, database.flavor).tables
        if not {"synrepl_writers", "stream_positions"} & set(tables):
            raise StorageError(
                op="examine",
                why=f"{database.name} has neither synrepl_writers nor stream_positions",
                hint="choose the database with the writers' tables",
            )
        return stalls_in(cursor, tables, now)

    return database.read_transaction("examine", work)


def stalls_in(cursor: Any, tables: Container[str], now: float) -> list[Stall]:
    """The stalls in a database with these tables."""
    states = read_writers(cursor) if "synrepl_writers" in tables else []
    return find_stalls(states, read_positions(cursor) if "stream_positions" in tables else {}, now)


def read_positions(cursor: Any) -> dict[str, dict[str, int]]:
    """Read the stored positions by stream and writer, in ascending numbers."""
    cursor.execute("SELECT stream_name, instance_name, stream_id FROM stream_positions")
    found: dict[str, dict[str, int]] = {}
    for stream, writer, token in cursor.fetchall():
        found.setdefault(stream, {})[writer] = abs(token)
    return found


def _of_writer(state: WriterState, behind: int, now: float) -> Iterator[Stall]:
    silent = max(0.0, now - state.told_at)
    # Without a process it is known to be gone, and its ids were released.
    is_silent = bool(state.process) and silent >= SILENT_SECONDS
    stall = partial(
        Stall,
        stream=state.stream,
        writer=state.writer,
        position=state.position,
        behind=behind,
        unfinished=state.unfinished,
        process=state.process,
    )
    if state.oldest_id is not None and state.oldest_since is not None:
        age = max(0.0, now - state.oldest_since)
        count, first = state.unfinished, state.oldest_id
        what = f"{count} ids from {first} on" if count > 1 else f"id {first}"
        yield stall(
            why="unfinished",
            is_stuck=age >= STUCK_SECONDS,
            text=f"{state.writer} has {what} unfinished, reserved {age:.0f} s ago by {state.owner} (process"
            f" {state.process}): the stream waits for id {first}",
            first_id=state.oldest_id,
            age_seconds=round(age, 3),
            owner=state.owner,
        )
    if is_silent:
        yield stall(
            why="silent",
            is_stuck=bool(state.unfinished) or behind > 0,
            text=f"{state.writer} has stored no status for {silent:.0f} s (process {state.process})",
            age_seconds=round(silent, 3),
        )


def _behind(stream: str, positions: Mapping[str, int], stuck: set[Writer]) -> Iterator[Stall]:
    lowest, highest = min(positions.values()), max(positions.values())
    for writer in sorted(positions):
        if positions[writer] == lowest < highest:
            yield Stall(
                stream=stream,
                writer=writer,
                why="behind",
                is_stuck=(stream, writer) in stuck,
                text=f"{writer} is at {lowest}, {highest - lowest} behind the writer at {highest}: linear"
                " readers wait for it, except where rows prove that nothing is missing",
                position=lowest,
                behind=highest - lowest,
            )
