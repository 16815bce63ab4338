"""The archive as a Delta table: its files, and the batches in its log.

A batch is one commit, whose metadata has the field `synrepl` (`Batch`). The batches follow each other without
a gap. Such a commit has the application transaction `APP` with the last serial: of two jobs that add the
same facts, one fails. Other commits merge files. The name of a file has its SHA-256.

Other programs may remove commits below a checkpoint, which has files and transactions, but no batches. The
last batch is therefore in `END` too, and those whose commits are gone are read as one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from synrepl.base import checked_json
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.row_files import WrittenFile, read_files, within
from synrepl.pipeline.archive.table_commits import (
    COUNT,
    END,
    FIELD,
    LAST_CHECKPOINT,
    LINK,
    LOG,
    READS_AT_ONCE,
    KeptEnd,
    TableCommits,
    first_torn,
    read_end,
)
from synrepl.pipeline.source.rows import ROWS, row_schema
from synrepl.pipeline.store import BadArchive, NotFound, Store
from synrepl.wire.text import printable

APP: Final = "synrepl-archive"
AS_OF: Final = "take a version, such as 17, or a time with its offset, such as 2026-01-31T00:00:00Z"
UNIX_EPOCH: Final = datetime.fromtimestamp(0, UTC)
RESTORED: Final = "RESTORE COMMIT"
FORMER: Final = "_manifests"
CHECKPOINT_EVERY: Final = 100
"""The number of commits after which there is a new checkpoint, as in other Delta tables."""

NO_CHECKPOINT: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
PARTITIONS: Final = ["stream", "date"]
SCHEMA: Final = Schema.from_arrow(ROWS.append(pa.field("date", pa.date32(), nullable=False)))

PROPERTIES: Final = {
    # Files may be merged, but no fact is deleted or replaced.
    "delta.appendOnly": "true",
    # The history has the digests and the archive lag of all batches.
    "delta.enableExpiredLogCleanup": "false",
}

COLUMNS: Final = {
    "path": ("path", pa.string()),
    "size_bytes": ("bytes", pa.int64()),
    "num_records": ("rows", pa.int64()),
    "partition.stream": ("stream", pa.string()),
    "partition.date": ("date", pa.date32()),
    "min.serial": ("first_serial", pa.int64()),
    "max.serial": ("last_serial", pa.int64()),
    "max.seq": ("last_seq", pa.int32()),
}
"""The columns of `FILES`, by their names in the log of the table."""

FILES: Final = pa.schema(COLUMNS.values())
"""The schema of `ArchiveTable.files`. `last_seq` is the highest `seq`: 0 if no fact has several rows."""

SERIALS: Final = row_schema(("serial",))
DIGESTS: Final = row_schema(("serial", "digest"))

UNUSUAL: Final = r"\.\.|%|^/|[^\w.~=/-]"
"""Matches every path that can leave the archive, and a few others."""


class CommitConflict(Exception):
    """delta-rs has refused a commit, as a rule because another job has committed meanwhile."""


class ArchiveTable:
    """One version of the table of an archive. Raises `BadArchive` if it does not exist or cannot be read.

    `as_of` is a version, or a time as ISO 8601 with an offset, which is that of the newest version committed
    at or before it; None is the newest version.
    """

    def __init__(self, store: Store, as_of: str | None = None) -> None:
        self.store = store
        self._log = TableCommits(store)
        self._is_cut = False
        """Whether a commit was removed from the log."""
        self._is_synced = False
        """Whether the commit of this version was synced by this job."""
        self._torn = first_torn(store)
        """The first version whose commit a power failure has left in part, if any: it counts as not there."""
        newest = self._log.newest() if self._torn is None else self._torn - 1
        try:
            is_number = as_of is not None and as_of.isascii() and as_of.isdigit()
            version = int(as_of) if as_of is not None and is_number else None
            if version is not None and -1 < newest < version:
                raise ValueError(f"the newest version is {newest}")
            self._log.verify(newest if version is None else version)
            if self._torn is not None:
                self._check_before_torn(newest)
                version = newest if version is None else version
            self._delta = DeltaTable(store.table_uri, version, store.options)
            if as_of is not None and version is None:
                version = self._version_at(as_of)
                self._log.verify(version)
                self._delta.load_as_version(version)
        except TableNotFoundError as error:
            if store.names(FORMER):
                raise BadArchive(
                    f"{store} is an archive in the former format, with manifests in {FORMER}; archive into a"
                    " new directory, while the log or a replica still has the facts"
                ) from error
            raise BadArchive(
                f"{store}: nothing is archived there yet; run synrepl pipeline archive first"
            ) from error
        except (DeltaError, ValueError, OSError, OverflowError) as error:
            what = "" if as_of is None else f" as of {printable(as_of[:80])}"
            hint = _as_unix_time(as_of or "")
            raise BadArchive(f"{store} cannot be read{what}: {_line(error)}{hint}") from error
        self._look()

    @classmethod
    def if_any(cls, store: Store, as_of: str | None = None) -> "ArchiveTable | None":
        """Return the table; None if nothing is archived yet. Raises `BadArchive` if it cannot be read.

        Raises `ConfigError` if no archive can be there.
        """
        store.check_table_path()
        if (not TableCommits(store).names() and not store.names(FORMER)) or first_torn(store) == 0:
            return None
        return cls(store, as_of)

    @property
    def files(self) -> Any:
        """The files of this version (`FILES`), by serial.

        Raises `BadArchive` without their statistics, or if one is outside of the archive.
        """
        found = pa.table(self._delta.get_add_actions(flatten=True))
        if not len(found):
            return FILES.empty_table()
        if missing := set(COLUMNS) - set(found.column_names):
            raise BadArchive(f"{self.store}: the table lacks statistics: {', '.join(sorted(missing))}")
        found = found.select(list(COLUMNS)).rename_columns(FILES.names).cast(FILES)
        if pc.any(pc.match_substring(found["path"], "%")).as_py():
            found = found.set_column(0, "path", _unquote(found["path"]))
        # Before any task opens one. Only these few can leave the table.
        for path in found["path"].filter(pc.match_substring_regex(found["path"], UNUSUAL)).to_pylist():
            self.store.check_name(path)
        return found.sort_by([("first_serial", "ascending"), ("path", "ascending")])

    def batches(self) -> list[Batch]:
        """Return all batches, in order. Raises `BadArchive` unless each continues the previous one.

        Those whose commits were removed from the log are one.
        """
        found = list(self._batches())[::-1]
        if self._is_cut and (not found or found[0].first_serial > 1):
            found.insert(0, self._removed(found))
        expected = 1
        for batch in found:
            if batch.first_serial != expected:
                raise BadArchive(
                    f"{self.store}: version {batch.version} begins at serial {batch.first_serial}, expected"
                    f" serial {expected}"
                )
            expected = batch.last_serial + 1
        return found

    def digest_at(self, serial: int) -> str | None:
        """Return the digest at a serial; None if the archive has no such fact."""
        if self.end.last_serial == serial:
            return self.end.digest
        for batch in self._batches():
            if batch.last_serial == serial:
                return batch.digest
            if batch.last_serial < serial:
                break
        paths = within(self.files, serial, serial)["path"].to_pylist()
        for rows in read_files(self.store, paths, DIGESTS):
            found = rows["digest"].filter(pc.equal(rows["serial"], serial))
            if len(found):
                return str(found[0].as_py())
        return None

    def _look(self) -> None:
        self.version = self._delta.version()
        found = next(self._batches(), None) or self._kept_end()
        if found is None:
            raise BadArchive(
                f"{self.store} is a Delta table, but not an archive (no commit has the field {FIELD})"
            )
        self.end = found

    def _batches(self) -> Iterator[Batch]:
        """Yield the batches, the last first, up to a commit that was removed from the log.

        The history of delta-rs would hold all commits in memory, and always begin at the newest version.
        """
        versions = range(self.version, -1, -1)
        done, count = 0, 1
        with ThreadPoolExecutor(READS_AT_ONCE) as threads:
            while (some := versions[done : done + count]) and not self._is_cut:
                yield from filter(None, threads.map(self._batch, some))
                done, count = done + count, READS_AT_ONCE

    def _batch(self, version: int) -> Batch | None:
        """Return the batch of a commit; None if the commit only merges files."""
        try:
            batch = self._commit_info(version).get(FIELD)
        except NotFound:
            # Else delta-rs would have refused the table: a checkpoint has what it needs.
            self._is_cut = True
            return None
        try:
            return batch and msgspec.convert(batch | {"version": version}, Batch)
        except ValueError as error:
            raise self._unreadable(version, error) from error

    def _commit_info(self, version: int) -> dict[str, Any]:
        try:
            return self._log.info(version)
        except ValueError as error:
            raise self._unreadable(version, error) from error

    def _kept_end(self) -> Batch | None:
        """Return the last batch, whose commit was removed from the log; None if there never was one.

        Raises `BadArchive` if nothing tells where the archive ends.
        """
        serial = self._delta.transaction_version(APP)
        if serial is None:
            return None
        kept = read_end(self.store)
        if kept is None or kept.last_serial != serial:
            raise BadArchive(
                f"{self.store}: the commit of the last batch (up to serial {serial}) was removed from {LOG},"
                f" and {END} does not have it; put the removed files back, or archive into a new directory"
                " while the log or a replica still has the facts"
            )
        return Batch(**{name: getattr(kept, name) for name in Batch.__struct_fields__})

    def _removed(self, found: Sequence[Batch]) -> Batch:
        """Return one batch in place of those before `found`, whose commits were removed from the log.

        Its clock and its digest are unknown, unless it is the last one.
        """
        after = found[0] if found else self.end
        last = found[0].first_serial - 1 if found else self.end.last_serial
        files = self.files
        rows = pc.sum(files["rows"]).as_py() - sum(one.rows for one in found)
        files = files.filter(pc.less_equal(files["first_serial"], last))
        trimmed = min(last, after.compacted_upto)
        facts = last - trimmed + self._count_serials(trimmed)
        first_at_ms, last_at_ms = self._times(last)
        whole = msgspec.structs.replace(
            after,
            first_serial=1,
            facts=facts,
            rows=rows,
            bytes=pc.sum(files["bytes"]).as_py(),
            first_at_ms=first_at_ms,
        )
        if not found:
            return whole
        starts = [start for start in after.epoch_starts if start.serial < last]
        return msgspec.structs.replace(
            whole,
            last_serial=last,
            epoch=max([1, *(start.epoch for start in starts)]),
            epoch_starts=starts,
            digest="",
            end={},
            last_at_ms=last_at_ms,
            archived_at_ms=0,
            version=0,
        )

    def _count_serials(self, upto: int) -> int:
        """Count the serials that the archive has up to this one; a trimmed log lacked some."""
        serials = set[int]()
        files = self.files.filter(pc.less_equal(self.files["first_serial"], upto))
        for rows in read_files(self.store, files["path"].to_pylist(), SERIALS):
            serials.update(rows["serial"].to_pylist())
        return sum(one <= upto for one in serials)

    def _times(self, upto: int) -> tuple[int, int]:
        """Return the first and the last time, in milliseconds, in the files with facts up to this serial."""
        found = pa.table(self._delta.get_add_actions(flatten=True))
        if missing := {"min.committed_at", "max.committed_at"} - set(found.column_names):
            raise BadArchive(f"{self.store}: the table lacks statistics: {', '.join(sorted(missing))}")
        found = found.filter(pc.less_equal(found["min.serial"], upto))
        ends = pc.min(found["min.committed_at"]).as_py(), pc.max(found["max.committed_at"]).as_py()
        first, last = (int(one.timestamp() * 1000) for one in ends)
        return first, last

    def _unreadable(self, version: int, error: Exception) -> BadArchive:
        return BadArchive(f"{self.store}: version {version} cannot be read: {_line(error)}")

    def _version_at(self, time: str) -> int:
        """Return the newest version that was committed at or before a time.

        The times are those in the commits. delta-rs would go by the times of the files, which a copy, a
        restore or an upload changes. (It refuses the property delta.enableInCommitTimestamps, by which all
        readers of the table would do the same.)
        """
        try:
            at = datetime.fromisoformat(time)
        except ValueError as error:
            raise ValueError(f"{error}; {AS_OF}") from error
        if at.tzinfo is None:
            raise ValueError(f"a time without an offset from UTC is another one elsewhere; {AS_OF}")
        at_ms = (at - UNIX_EPOCH) // timedelta(milliseconds=1)
        versions = self._log.versions(self._delta.version())
        count = bisect_right(versions, at_ms, key=self._committed_at_ms)
        if not count:
            first = datetime.fromtimestamp(self._committed_at_ms(versions[0]) / 1000, UTC).isoformat()
            raise ValueError(
                f"the archive begins at {first}"
                if versions[0] == 0
                else f"earlier commits were removed from {LOG}; version {versions[0]} is of {first}"
            )
        return versions[count - 1]

    def _committed_at_ms(self, version: int) -> int:
        try:
            at_ms = self._log.committed_at_ms(version)
        except NotFound:
            kept = self._kept_end()  # all commits were removed
            at_ms = None if kept is None else kept.archived_at_ms
        if at_ms is None:
            raise ValueError(f"nothing says when version {version} was committed")
        return at_ms

    def append(self, batch: Batch, added: Sequence[WrittenFile]) -> "ArchiveTable":
        """Commit the next batch, and return the table, now of the new version.

        Raises `CommitConflict` if the archive has another batch after this version.
        """
        return self._commit(_add_actions(added, batch.archived_at_ms), batch)

    def replace(self, removed: Any, added: Sequence[WrittenFile], *, now_ms: int) -> "ArchiveTable":
        """Replace files (rows of `files`) by files with the same facts. Return the table as `append` does.

        Raises `CommitConflict` if another job has removed one of the files.
        """
        gone = [
            RemoveAction(
                path=file["path"],
                data_change=False,
                deletion_timestamp=now_ms,
                size=file["bytes"],
                partition_values={"stream": file["stream"], "date": str(file["date"])},
            )
            for file in removed.to_pylist()
        ]
        return self._commit([*_add_actions(added, now_ms, data_change=False), *gone])

    def vacuum(self, *, retention_hours: int, dry_run: bool) -> list[str]:
        """Return files that no version of the last `retention_hours` has. Remove them unless `dry_run`.

        Raises `BadArchive` if a folder is a symbolic link, which delta-rs would follow.
        """
        self.store.check_no_links()
        if not dry_run:
            self._prepare_log()
        found: list[str] = self._delta.vacuum(
            retention_hours,
            dry_run,
            enforce_retention_duration=False,
            post_commithook_properties=NO_CHECKPOINT,
            full=True,
        )
        if not dry_run:
            self._finish_commit()
        return found

    def _commit(self, actions: list[AddAction | RemoveAction], batch: Batch | None = None) -> "ArchiveTable":
        self._prepare_log()
        try:
            self._delta.create_write_transaction(
                actions,
                "append",
                SCHEMA,
                PARTITIONS,
                commit_properties=_properties(len(actions), batch, self._log.link()),
                post_commithook_properties=NO_CHECKPOINT,
            )
        except DeltaError as error:
            raise CommitConflict(_line(error)) from error
        self._finish_commit()
        return self

    def _prepare_log(self) -> None:
        """Make the log ready for the next commit."""
        if self._torn is not None:
            self._log.remove_from(self._torn)
            self._torn = None
        if not self._is_synced:
            # The last commit may be of a job that was killed before it synced it.
            self._log.sync([self.version])
        self._restore_commit()

    def _finish_commit(self) -> None:
        """Make the last commits survive a power failure, and the last batch the removal of its commit."""
        before = self.version
        # Not loaded again: for a large archive that costs seconds, and twice the memory.
        self._delta.update_incremental()
        self._is_cut = False
        self._look()
        self.sync(before)

    def sync(self, before: int) -> None:
        """Make the commits after a version durable, then the last batch. Add a checkpoint if one is due."""
        self._log.sync(range(before + 1, self.version + 1))
        self._is_synced = True
        self._log.add(range(before + 1, self.version + 1))
        self._write_end()
        if self.version - self._log.newest_checkpoint() >= CHECKPOINT_EVERY:
            # Without one a reader has more commits to read; the next commit tries again.
            with suppress(DeltaError, OSError):
                self._write_checkpoint()
                self._log.add_checkpoint(self.version)
                self._write_end()

    def _write_end(self) -> None:
        end = KeptEnd(**msgspec.structs.asdict(self.end), log=self._log.link())
        self.store.write(END, checked_json.encode(end))

    def unverified(self) -> list[str]:
        """Return the names of files of the log that nothing has the checksums of."""
        return self._log.unverified()

    def _write_checkpoint(self) -> None:
        """Write a checkpoint of the log. delta-rs would not sync it; readers trust one that is cut."""
        if not self.store.is_local:
            self._delta.create_checkpoint()
            return
        needed = self._log.since_checkpoint()
        with TemporaryDirectory() as folder:
            log = Path(folder, LOG)
            log.mkdir()
            for name in needed:
                try:
                    (log / name).write_bytes(self._log.read_again(name))
                except ValueError as error:
                    raise BadArchive(f"{self.store}: {error}") from error
            DeltaTable(folder).create_checkpoint()
            made = {path.name for path in log.iterdir()} - {*needed, LAST_CHECKPOINT}
            if self._log.newest_checkpoint() >= self.version:
                return  # of another job, which has its checksum
            for name in (*sorted(made), LAST_CHECKPOINT):
                self.store.write(f"{LOG}/{name}", (log / name).read_bytes())

    def _check_before_torn(self, version: int) -> None:
        """Raise unless the version before a torn commit is as it was: nothing of it was replaced for good."""
        if version < 0:
            raise TableNotFoundError
        self._delta = DeltaTable(self.store.table_uri, version, self.store.options)
        missing = [path for path in self.files["path"].to_pylist() if not self.store.exists(path)]
        if missing:
            raise ValueError(f"the commit of version {version + 1} is damaged; {missing[0]} is missing")

    def _restore_commit(self) -> None:
        """Write a commit in place of that of this version, if it was removed: delta-rs adds none after it.

        It changes nothing, as readers begin at the checkpoint. It has the last batch.
        """
        if self._is_cut and not self._log.has(self.version):
            # First: a kill must not leave the checksum of the one that was removed.
            self._log.forget(self.version)
            self._write_end()
            info = {"timestamp": self.end.archived_at_ms, "operation": RESTORED, FIELD: self.end}
            self.store.write(
                f"{LOG}/{self.version:020}.json", msgspec.json.encode({"commitInfo": info}) + b"\n"
            )
            self._log.add([self.version])
            self._delta = DeltaTable(self.store.table_uri, self.version, self.store.options)


def create_table(store: Store, batch: Batch, added: Sequence[WrittenFile]) -> ArchiveTable:
    """Create the table of an archive with its first batch. Raises `CommitConflict` if it exists."""
    if first_torn(store) == 0:
        TableCommits(store).remove_from(0)
    try:
        create_table_with_add_actions(
            store.table_uri,
            SCHEMA,
            _add_actions(added, batch.archived_at_ms),
            partition_by=PARTITIONS,
            name="synrepl archive",
            configuration=PROPERTIES,
            storage_options=store.options,
            # A retry would create the table again, over that of another job.
            commit_properties=_properties(len(added), batch, {}, retries=0),
            post_commithook_properties=NO_CHECKPOINT,
        )
    except DeltaError as error:
        raise CommitConflict(_line(error)) from error
    table = ArchiveTable(store)
    table.sync(-1)
    return table


def _add_actions(added: Iterable[WrittenFile], now_ms: int, *, data_change: bool = True) -> list[Any]:
    return [
        AddAction(
            one.path, one.bytes, {"stream": one.stream, "date": one.date}, now_ms, data_change, one.stats
        )
        for one in added
    ]


def _properties(
    files: int, batch: Batch | None, link: dict[str, str], *, retries: int | None = None
) -> CommitProperties:
    """Return what is told with a commit of so many files, after those with these checksums."""
    counted: dict[str, Any] = {COUNT: files, LINK: link}
    if batch is None:
        return CommitProperties(custom_metadata=counted)
    return CommitProperties(
        custom_metadata={FIELD: msgspec.to_builtins(batch), **counted},
        max_commit_retries=retries,
        app_transactions=[Transaction(APP, batch.last_serial)],
    )


def _unquote(paths: Any) -> Any:
    """Decode percent-encoded paths, of which only the folders are encoded."""
    folders = pc.replace_substring_regex(paths, "[^/]*$", "").combine_chunks().dictionary_encode()
    plain = pa.array(map(unquote, folders.dictionary.to_pylist()), pa.string()).take(folders.indices)
    return pc.binary_join_element_wise(plain, pc.replace_substring_regex(paths, "^.*/", ""), "")


def _as_unix_time(text: str) -> str:
    """Return the time that was perhaps meant by digits, after a semicolon; empty if it is none."""
    factor = {10: 1, 13: 1000}.get(len(text)) if text.isascii() and text.isdigit() else None
    if factor is None:
        return ""
    at = datetime.fromtimestamp(int(text) // factor, UTC)
    return f"; as the Unix time {at:%Y-%m-%dT%H:%M:%SZ} it must be written so"


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
