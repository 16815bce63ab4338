"""The log of a Delta table: its commits as they were written, those of archives and of other tables.

Other programs may remove commits below a checkpoint. A commit has its time in itself, as the times of files
are others after a copy, a restore or an upload.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from synrepl.pipeline.store import BadArchive, NotFound, Store
from synrepl.wire.text import printable

FIELD: Final = "synrepl"
COUNT: Final = "synreplActions"
"""The number of files that a commit adds and removes."""
LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
END: Final = "_synrepl/end.json"
"""The last batch of an archive once more. Its commit, and those before it, were synced."""

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_OF_VERSION: Final = re.compile(r"(\d{20})\.(?:json$|checkpoint\.)")
_UNNAMED: Final = re.compile(r"#\d+$")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.")


_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class _Add(msgspec.Struct, frozen=True):
    stats: str | None = None


class _Stats(msgspec.Struct, frozen=True, rename="camel"):
    num_records: int | None = None


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    """A line of a commit, as far as it is read."""

    commit_info: dict[str, Any] | None = None
    add: _Add | None = None
    remove: dict[str, Any] | None = None
    txn: dict[str, Any] | None = None


_actions: Final = msgspec.json.Decoder(_Action)


class _End(msgspec.Struct, frozen=True):
    version: int


class TableVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a table: when it was committed, and what the commit did.

    `files` are those of the version. `rows` are those of the added files (None: unknown). `facts` and the
    serials are those of a batch of an archive.
    """

    version: int
    committed_at_ms: int | None
    operation: str
    files: int
    files_added: int
    files_removed: int
    rows: int | None
    facts: int | None
    first_serial: int | None
    last_serial: int | None


class TableHistory(msgspec.Struct, frozen=True):
    """Versions of a table, the newest first. `is_cut`: the commits of earlier ones were removed."""

    versions: list[TableVersion]
    is_cut: bool


class TableCommits:
    """The commits of a table. Methods raise `NotFound` for a removed one, ValueError for a damaged one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Return the names of the files in the log, without those that delta-rs had yet to name."""
        return [name for name in self._store.names(LOG) if not _UNNAMED.search(name)]

    def info(self, version: int) -> dict[str, Any]:
        """Return what a commit says of itself; nothing if it says nothing."""
        for line in self._lines(version):
            if line.startswith(b'{"commitInfo"'):
                return _actions.decode(line).commit_info or {}
        return {}

    def committed_at_ms(self, version: int) -> int | None:
        """Return when a version was committed; None if the commit does not say."""
        return _time_of(self.info(version))

    def has(self, version: int) -> bool:
        """Whether the commit of a version is there."""
        return self._store.exists(f"{LOG}/{version:020}.json")

    def is_whole(self, version: int) -> bool:
        """Whether the commit of a version has all that was written.

        delta-rs does not sync: after a power failure there may be the name of a commit with a part of its
        bytes.
        """
        try:
            actions = [_actions.decode(line) for line in self._lines(version)]
        except ValueError:
            return False
        info = next((one.commit_info for one in actions if one.commit_info is not None), {})
        if COUNT not in info:
            return bool(actions)  # of another program, or of an earlier release
        has_batch = FIELD not in info or any(one.txn is not None for one in actions)
        return has_batch and info[COUNT] == sum(
            one.add is not None or one.remove is not None for one in actions
        )

    def first_cut(self, after: int) -> int | None:
        """Return the first version after this one whose commit is not whole; None if there is none."""
        versions = range(after + 1, self.newest() + 1)
        return next((one for one in versions if self.has(one) and not self.is_whole(one)), None)

    def remove_from(self, version: int) -> None:
        """Remove the commits from this version on, durably."""
        for one in range(self.newest(), version - 1, -1):
            self._store.remove(f"{LOG}/{one:020}.json")
        self._store.sync(LOG)

    def sync(self, versions: Iterable[int]) -> None:
        """Make the commits of these versions durable."""
        for one in versions:
            if self.has(one):
                self._store.sync(f"{LOG}/{one:020}.json")

    def newest_checkpoint(self) -> int:
        """Return the newest version that there is a checkpoint of; -1 without any."""
        found = map(_CHECKPOINT.match, self._store.names(LOG))
        return max((int(one[1]) for one in found if one), default=-1)

    def since_checkpoint(self) -> list[str]:
        """Return the names of the files that load the table: the newest checkpoint, and what follows it."""
        names, newest = self._store.names(LOG), self.newest_checkpoint()
        found = [name for name in names if (one := _OF_VERSION.match(name)) and int(one[1]) >= newest]
        return [*found, *(name for name in names if name == LAST_CHECKPOINT)]

    def newest(self) -> int:
        """Return the newest version that there is a file of; -1 without any."""
        found = map(_OF_VERSION.match, self._store.names(LOG))
        return max((int(one[1]) for one in found if one), default=-1)

    def versions(self, head: int) -> range:
        """Return the versions that can be read: those from a checkpoint on, if commits were removed."""
        names = self._store.names(LOG)
        commits = {int(found[1]) for found in map(_COMMIT.fullmatch, names) if found}
        first = head
        while first - 1 in commits:
            first -= 1
        if first > 0:
            checkpoints = [int(found[1]) for found in map(_CHECKPOINT.match, names) if found]
            first = max(first, min((one for one in checkpoints if first - 1 <= one <= head), default=first))
        return range(first, head + 1)

    def describe(self, version: int, files: int) -> TableVersion:
        """Describe a version, which has so many files."""
        actions = [_actions.decode(line) for line in self._lines(version)]
        info = next((one.commit_info for one in actions if one.commit_info is not None), {})
        added = [one.add for one in actions if one.add is not None]
        rows = [msgspec.json.decode(one.stats or "{}", type=_Stats).num_records for one in added]
        batch = _batch_of(info)
        return TableVersion(
            version=version,
            committed_at_ms=_time_of(info),
            operation=printable(str(info.get("operation", "unknown"))[:40]),
            files=files,
            files_added=len(added),
            files_removed=sum(one.remove is not None for one in actions),
            rows=None if None in rows else sum(filter(None, rows)),
            facts=_number(batch.get("facts")),
            first_serial=_number(batch.get("first_serial")),
            last_serial=_number(batch.get("last_serial")),
        )

    def _lines(self, version: int) -> list[bytes]:
        return self._store.read(f"{LOG}/{version:020}.json").splitlines()


def first_torn(store: Store) -> int | None:
    """Return the first version of an archive whose commit a power failure has cut; None if there is none.

    What is wrong with a commit that was synced is damage. An archive that has no `END` yet may have its first
    commit. Object stores have whole objects only.
    """
    if not store.is_local:
        return None
    commits = TableCommits(store)
    try:
        synced = msgspec.json.decode(store.read(END), type=_End).version
    except (NotFound, ValueError):
        return 0 if commits.has(0) and not commits.is_whole(0) else None
    return commits.first_cut(synced)


def read_history(store: Store, limit: int) -> TableHistory:
    """Return the newest versions of an archive or of another Delta table, at most so many.

    Raises `BadArchive` if there is no table, or its log cannot be read.
    """
    try:
        torn = first_torn(store)
        if torn == 0:
            raise TableNotFoundError
        delta = DeltaTable(store.table_uri, None if torn is None else torn - 1, store.options)
        files = len(pa.table(delta.get_add_actions()))
        versions = TableCommits(store).versions(delta.version())
        asked = versions[-limit:][::-1]
        found = list(_describe(TableCommits(store), asked, files))
    except TableNotFoundError as error:
        raise BadArchive(f"{store} has no versions: there is no Delta table, hence no archive") from error
    except (DeltaError, ValueError, OSError) as error:
        raise BadArchive(f"{store}: the log of the table cannot be read: {printable(str(error))}") from error
    is_cut = len(found) < len(asked) or asked[-1] == versions[0] > 0
    return TableHistory(found, is_cut=is_cut)


def _describe(log: TableCommits, versions: range, files: int) -> Iterator[TableVersion]:
    for version in versions:
        try:
            one = log.describe(version, files)
        except NotFound:
            return  # only the checkpoint is left
        files += one.files_removed - one.files_added
        yield one


def _time_of(info: dict[str, Any]) -> int | None:
    """Return the time of a commit, in milliseconds: its in-commit timestamp, else what its writer says."""
    told = (info.get("inCommitTimestamp"), _batch_of(info).get("archived_at_ms"), info.get("timestamp"))
    return next((at for at in map(_number, told) if at and 0 < at <= _LAST_MS), None)


def _batch_of(info: dict[str, Any]) -> dict[str, Any]:
    found = info.get(FIELD)
    return found if isinstance(found, dict) else {}


def _number(value: object) -> int | None:
    """Return a whole number as it is; anything else that a commit may have in its place is unknown."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
