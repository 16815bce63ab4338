"""The log of a Delta table: its commits as they were written, those of archives and of other tables.

Other programs may remove commits below a checkpoint. A commit has its time in itself, as the times of files
are others after a copy, a restore or an upload.

A commit of an archive has the SHA-256 of the files before it (`LINK`): of those that load the table, the ones
that no earlier commit has. That is the commit before it, and what other programs have written since. `END`
has those of the newest. So a flipped bit in any of them is found; the first that an earlier release has left
are not verified.
"""

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from synrepl.base import checked_json
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.store import BadArchive, NotFound, Store
from synrepl.wire.text import printable

FIELD: Final = "synrepl"
COUNT: Final = "synreplActions"
"""The number of files that a commit adds and removes."""
LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
LINK: Final = "synreplLog"
"""The SHA-256 of earlier files of the log, by their names."""
END: Final = "_synrepl/end.json"
"""The last batch of an archive once more. Its commit, and those before it, were synced."""
DAMAGED: Final = (
    "put a copy of it back, or archive into a new directory while the log or a replica still has the facts"
)
READS_AT_ONCE: Final = 16
"""Number of commits read at the same time, as each read from an object store takes long."""
FOLLOWING: Final = 8
"""Number of commits in which the checksum of the one before them is looked for: of those that are added at
the same time, and by a vacuum, only a later one has it."""

_COMMIT: Final = re.compile(r"(\d{20})\.json$")
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


class KeptEnd(Batch, frozen=True, kw_only=True):
    """The contents of `END`: the last batch, and `log`, the checksums as in `LINK`."""

    log: dict[str, str] = {}

    @property
    def synced(self) -> int:
        """The last version whose commit was synced."""
        return max([self.version, *(int(name[:20]) for name in self.log)])


def read_end(store: Store) -> KeptEnd | None:
    """Return what is in `END`, if it is there. Raises `BadArchive` if it is damaged."""
    try:
        return store.decode(END, partial(checked_json.decode, type=KeptEnd, later=frozenset({"log"})))
    except NotFound:
        return None
    except ValueError as error:
        raise BadArchive(
            f"{store}: {END} is damaged: {error}; remove it, if the commit of the last batch is in {LOG}:"
            " the next commit writes it again"
        ) from error


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
    """The commits of a table. Methods raise `NotFound` for a removed one, ValueError for a damaged one, and
    `BadArchive` if `END` is damaged."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: dict[str, str] = {}
        """The SHA-256 of the files that were read."""
        self._linked: dict[str, str] = {}
        """Those that commits have in `LINK`, as far as they were read."""
        self._loading: dict[str, None] = {}
        """The names of the files that load the version of the table, in order."""

    def names(self) -> list[str]:
        """Return the names of the files in the log, without those that delta-rs had yet to name."""
        return [name for name in self._store.names(LOG) if not _UNNAMED.search(name)]

    def info(self, version: int) -> dict[str, Any]:
        """Return what a commit says of itself; nothing if it says nothing."""
        return _info(self._lines(version))

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
        data = self._take(version)
        self._check(_name(version), version)
        return data.splitlines()

    # -- checksums -----------------------------------------------------------------------------------------

    @cached_property
    def _kept(self) -> dict[str, str]:
        """The checksums in `END`."""
        end = read_end(self._store)
        return {} if end is None else {**end.log}

    def verify(self, version: int) -> None:
        """Verify the files that load a version, which delta-rs then reads, as far as checksums are known."""
        names = self.names()
        checkpoint = max((one for one in _versions(_CHECKPOINT, names) if one <= version), default=0)
        commits = [one for one in _versions(_COMMIT, names) if checkpoint <= one <= version]
        with ThreadPoolExecutor(READS_AT_ONCE) as threads:
            list(threads.map(self._take, commits))
        parts = [name for name in names if name.startswith(f"{checkpoint:020}.checkpoint.")]
        self._take_checkpoint(parts)
        self._loading = dict.fromkeys([*parts, *map(_name, commits)])
        for name in self._loading:
            self._check(name, int(name[:20]))

    def unverified(self) -> list[str]:
        """Return the names of the files that load the table, and whose checksums nothing has."""
        return [name for name in self._loading if name not in self._linked and name not in self._kept]

    def link(self) -> dict[str, str]:
        """Return the checksums of those files that load the table which no commit has."""
        return {name: self._found[name] for name in self._loading if name not in self._linked}

    def add(self, versions: Iterable[int]) -> None:
        """Take note of new commits."""
        for one in versions:
            with suppress(NotFound):
                self._take(one)
                self._loading[_name(one)] = None

    def add_checkpoint(self, version: int) -> None:
        """Take note of a new checkpoint."""
        parts = [name for name in self.names() if name.startswith(f"{version:020}.checkpoint.")]
        self._take_checkpoint(parts)
        self._loading |= dict.fromkeys(parts)

    def forget(self, version: int) -> None:
        """Take note that a commit is written in place of one that was removed."""
        self._kept.pop(_name(version), None)

    def _take(self, version: int) -> bytes:
        """Return a commit, and take note of its checksum, and of those that it has."""
        data = self._store.read(f"{LOG}/{_name(version)}")
        self._found[_name(version)] = sha256(data).hexdigest()
        # A damaged one is refused for its own checksum.
        with suppress(ValueError):
            self._linked |= msgspec.convert(_info(data.splitlines()).get(LINK, {}), dict[str, str])
        return data

    def _take_checkpoint(self, parts: Iterable[str]) -> None:
        self._found |= {name: self._store.sha256(f"{LOG}/{name}") for name in parts}

    def _check(self, name: str, version: int) -> None:
        """Raise ValueError if a file that was read has another checksum than what follows it says."""
        for following in range(version + 1, version + 1 + FOLLOWING):
            if name in self._linked:
                break
            if _name(following) not in self._found:
                try:
                    self._take(following)
                except NotFound:
                    break
        self._compare(name, self._linked.get(name) or self._kept.get(name))

    def read_again(self, name: str) -> bytes:
        """Return a file that was verified, as it was then: a job may run for weeks. Raises ValueError."""
        data, known = self._store.read(f"{LOG}/{name}"), self._found.get(name)
        self._found[name] = sha256(data).hexdigest()
        self._compare(name, known)
        return data

    def _compare(self, name: str, known: str | None) -> None:
        if known is not None and known != self._found[name]:
            raise ValueError(
                f"{LOG}/{name} is damaged: its SHA-256 is {self._found[name]}, not {known}; {DAMAGED}"
            )


def first_torn(store: Store) -> int | None:
    """Return the first version of an archive whose commit a power failure has cut; None if there is none.

    What is wrong with a commit that was synced is damage, and `END` has its checksum. An archive that has no
    `END` yet may have its first commit. Object stores have whole objects only.
    """
    if not store.is_local:
        return None
    commits, end = TableCommits(store), read_end(store)
    if end is None:
        return 0 if commits.has(0) and not commits.is_whole(0) else None
    return commits.first_cut(end.synced)


def read_history(store: Store, limit: int) -> TableHistory:
    """Return the newest versions of an archive or of another Delta table, at most so many.

    Raises `BadArchive` if there is no table, or its log cannot be read.
    """
    commits = TableCommits(store)
    try:
        torn = first_torn(store)
        if torn == 0:
            raise TableNotFoundError
        commits.verify(commits.newest() if torn is None else torn - 1)
        delta = DeltaTable(store.table_uri, None if torn is None else torn - 1, store.options)
        files = len(pa.table(delta.get_add_actions()))
        versions = commits.versions(delta.version())
        asked = versions[-limit:][::-1]
        found = list(_describe(commits, asked, files))
    except TableNotFoundError as error:
        raise BadArchive(f"{store} has no versions: there is no Delta table, hence no archive") from error
    except (DeltaError, ValueError, OSError) as error:
        raise BadArchive(f"{store}: the log of the table cannot be read: {printable(str(error))}") from error
    is_cut = len(found) < len(asked) or asked[-1] == versions[0] > 0
    return TableHistory(found, is_cut=is_cut)


def _name(version: int) -> str:
    return f"{version:020}.json"


def _versions(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    return [int(found[1]) for found in map(pattern.match, names) if found]


def _info(lines: Iterable[bytes]) -> dict[str, Any]:
    """Return what a commit says of itself; nothing if it says nothing."""
    for line in lines:
        if line.startswith(b'{"commitInfo"'):
            return _actions.decode(line).commit_info or {}
    return {}


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
