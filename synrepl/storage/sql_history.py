"""Epochs, snapshots and digests, in an SQL database."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import EpochStart, LogSnapshot
from synrepl.ports.interfaces import Head
from synrepl.storage.continuity import check_epoch_start
from synrepl.storage.discarded import DiscardedRanges
from synrepl.storage.sql_base import load_bounds
from synrepl.storage.sql_receipts import RECEIPT_COLUMNS, SQLReceipts, row_of_receipt

__all__ = ["SQLHistory"]

EPOCH_START_COLUMNS: Final = ", ".join(EpochStart.__struct_fields__)


class SQLHistory(SQLReceipts):
    """The part of an engine for epochs and snapshots."""

    def head(self) -> Head:
        """The end of the log now."""
        with self._map_errors("head"):
            database = self._writer("head")
            self._reload(database)
            meta = dict(self._execute(database, "SELECT key, value FROM meta"))
            serial, digest, epoch = self._last(database)
            epoch_starts = self._execute(
                database, f"SELECT {EPOCH_START_COLUMNS} FROM turns ORDER BY epoch"
            ).fetchall()
            positions = self._positions(database)
            allocated: dict[str, int] = {}
            for (stream, _), token in positions.items():
                allocated[stream] = max(token, allocated.get(stream, token))
            for stream, token in allocated.items():
                not_discarded, values = self._discarded.condition(stream)
                found = self._execute(
                    database,
                    f"SELECT max(token) FROM facts WHERE stream = ?{not_discarded}",
                    (stream, *values),
                ).fetchone()[0]
                allocated[stream] = token if found is None else max(token, found)
            trimmed_upto = self._current_bounds(database).trimmed_upto
        # After an uncertain commit the caller decides by this head, and the next commit builds on it.
        self._committed, self._attempted = (serial, digest), None
        return Head(
            epoch=max(meta["epoch"], epoch),
            serial=serial,
            digest=digest,
            boots=meta["boots"],
            positions=positions,
            allocated=allocated,
            trimmed_upto=trimmed_upto,
            epoch_starts=tuple(EpochStart(*row) for row in epoch_starts),
        )

    def begin_epoch(self, epoch_start: EpochStart) -> Head:
        """Begin a new epoch at the end of the log, and discard the facts that it declares lost."""
        check_epoch_start(epoch_start, self.head().position)
        with self._map_errors("begin_epoch", epoch_start.stream):
            database = self._writer("begin_epoch")
            with self._transaction(database):
                self._execute(database, "UPDATE meta SET value = ? WHERE key = 'epoch'", (epoch_start.epoch,))
                self._insert(database, "turns", EPOCH_START_COLUMNS, [msgspec.structs.astuple(epoch_start)])
                self._insert_discarded(database, [epoch_start])
                if epoch_start.stream:
                    self._execute(
                        database,
                        "UPDATE positions SET token = ? WHERE stream = ? AND token > ?",
                        (epoch_start.token, epoch_start.stream, epoch_start.token),
                    )
        return self.head()

    def digest_at(self, serial: int) -> str | None:
        """The digest at this serial; None if it is unknown."""
        with self._map_errors("digest_at"):
            database = self._reader("digest_at")
            return self._digest_at(database, serial)

    def _digest_at(self, database: Any, serial: int) -> str | None:
        # Facts before bounds: a fact trimmed between the two queries is then covered by the bounds.
        found = self._execute(database, "SELECT digest FROM facts WHERE serial = ?", (serial,)).fetchone()
        if found is not None:
            return str(found[0])
        bounds = load_bounds(
            self._execute(database, "SELECT name, epoch, serial, digest FROM places").fetchall()
        )
        for position in (bounds.trimmed_upto, bounds.floor):
            if position.serial == serial:
                return position.digest or None
        return None

    def snapshot(self) -> LogSnapshot:
        """Everything the log has besides facts, as of now."""
        with self._map_errors("snapshot"):
            database = self._writer("snapshot")
            with self._transaction(database):
                head = self.head()
                receipts = self._receipts(database)
        return LogSnapshot(
            position=head.position,
            trimmed_upto=head.trimmed_upto,
            epoch_starts=head.epoch_starts,
            positions=head.positions,
            receipts=receipts,
        )

    def restore(self, snapshot: LogSnapshot) -> Head:
        """Replace everything besides the facts by this snapshot, in one transaction."""
        with self._map_errors("restore"):
            database = self._writer("restore")
            with self._transaction(database):
                self._check_restorable(database, snapshot)
                serial, digest, _ = self._last(database)
                bounds = msgspec.structs.replace(
                    self._current_bounds(database), trimmed_upto=snapshot.trimmed_upto
                )
                if (serial, digest) != (snapshot.position.serial, snapshot.position.digest):
                    bounds = msgspec.structs.replace(bounds, filled=snapshot.position)
                for table in ("positions", "receipts", "turns", "voids"):
                    self._execute(database, f"DELETE FROM {table}")
                positions = [(*pair, token) for pair, token in snapshot.positions.items()]
                self._insert(database, "positions", "stream, writer, token", positions)
                self._insert(database, "receipts", RECEIPT_COLUMNS, map(row_of_receipt, snapshot.receipts))
                self._insert(
                    database,
                    "turns",
                    EPOCH_START_COLUMNS,
                    map(msgspec.structs.astuple, snapshot.epoch_starts),
                )
                self._insert_discarded(database, snapshot.epoch_starts)
                self._execute(
                    database, "UPDATE meta SET value = ? WHERE key = 'epoch'", (snapshot.position.epoch,)
                )
                self._store_bounds(database, bounds)
        return self.head()

    def _check_restorable(self, database: Any, snapshot: LogSnapshot) -> None:
        """Refuse a snapshot that does not fit these facts."""
        position = snapshot.position
        found = self._execute(
            database, "SELECT serial, digest FROM facts ORDER BY serial DESC LIMIT 1"
        ).fetchone()
        serial, digest = found or (0, "")
        why = ""
        if max(serial, self._last(database)[0]) > position.serial:
            why = f"the log is beyond serial {position.serial}"
        elif serial == position.serial and digest != position.digest and serial:
            why = f"serial {serial} belongs to another history"
        if why:
            raise StorageError(op="restore", why=why, hint="restart the copy")

    def _insert_discarded(self, database: Any, epoch_starts: Sequence[EpochStart]) -> None:
        lost = [
            (epoch_start.stream, epoch_start.epoch, epoch_start.token)
            for epoch_start in epoch_starts
            if epoch_start.stream
        ]
        self._insert(database, "voids", "stream, epoch, token", lost)

    def _reload(self, database: Any) -> None:
        """Reload what is cached in memory: the outcome of the last transaction may be unknown."""
        self._bounds = None
        self._current_bounds(database)
        self._discarded = DiscardedRanges(
            self._execute(database, "SELECT stream, epoch, token FROM voids").fetchall()
        )
