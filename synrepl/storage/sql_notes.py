"""Notes and leases, in an SQL database."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from synrepl.ports.history import Lease
from synrepl.storage.sql_base import SQLBase

__all__ = ["SQLNotes"]

LEASE: Final = tuple(Lease.__struct_fields__)

UPSERT_NOTE: Final = (
    "INSERT INTO notes (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
UPSERT_LEASE: Final = (
    f"INSERT INTO leases ({', '.join(LEASE)}) VALUES ({', '.join('?' * len(LEASE))})"
    f" ON CONFLICT (uuid) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in LEASE[1:])}"
)


class SQLNotes(SQLBase):
    """The part of an engine for notes and leases."""

    def notes(self) -> dict[str, str]:
        """Short texts stored with the log, by name."""
        with self._map_errors("notes"):
            return dict(self._execute(self._writer("notes"), "SELECT name, value FROM notes").fetchall())

    def note(self, notes: Mapping[str, str | None]) -> None:
        """Store these notes in one transaction; None deletes a note."""
        with self._map_errors("note"):
            database = self._writer("note")
            with self._transaction(database):
                stored = [(name, text) for name, text in notes.items() if text is not None]
                self._execute_many(database, UPSERT_NOTE, stored)
                forgotten = [(name,) for name, text in notes.items() if text is None]
                self._execute_many(database, "DELETE FROM notes WHERE name = ?", forgotten)

    def _identify(self, database: Any) -> None:
        """Give a new log the uuids of its copy and its history; within a transaction."""
        known = {name for (name,) in self._execute(database, "SELECT name FROM notes")}
        made = [(name, str(uuid4())) for name in ("uuid", "history") if name not in known]
        self._execute_many(database, UPSERT_NOTE, made)

    def leases(self) -> list[Lease]:
        """All leases, ended ones included, in order of uuid."""
        with self._map_errors("leases"):
            found = self._execute(self._writer("leases"), f"SELECT {', '.join(LEASE)} FROM leases")
            leases = [
                msgspec.convert(dict(zip(LEASE, row, strict=True)), Lease, strict=False) for row in found
            ]
        return sorted(leases, key=lambda lease: lease.uuid)

    def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        """Store these leases and delete the `dropped` uuids, in one transaction."""
        with self._map_errors("keep_leases"):
            database = self._writer("keep_leases")
            with self._transaction(database):
                rows = [
                    tuple(int(value) if value is True or value is False else value for value in row)
                    for row in map(msgspec.structs.astuple, changed)
                ]
                self._execute_many(database, UPSERT_LEASE, rows)
                self._execute_many(
                    database, "DELETE FROM leases WHERE uuid = ?", [(uuid,) for uuid in dropped]
                )
