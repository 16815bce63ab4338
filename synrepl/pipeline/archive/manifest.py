"""Manifests, which define an archive: a file that no manifest names is not part of it.

``_manifests/<batch>.json`` is written once, atomically, after all files of the batch are on disk. A batch has
all facts from `first_serial` to `last_serial`, and the next batch follows without a gap. A merged batch
`replaces` others, which are ignored from then on and removed later.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from synrepl.errors import ConfigError
from synrepl.pipeline.store import NotFound, Store
from synrepl.ports.history import EpochStart
from synrepl.streams.digest import EMPTY

__all__ = [
    "MANIFESTS",
    "ArchivedFile",
    "Arrival",
    "BadArchive",
    "Manifest",
    "current",
    "decode",
    "manifests",
    "next_batch",
    "texts",
    "write_manifest",
]

MANIFESTS: Final = "_manifests"
VERSION: Final = 1

Clock = dict[str, dict[str, int]]
"""`VClock.to_json`: the last token of each writer of each stream."""


class BadArchive(ConfigError):
    """The manifests contradict each other, or one cannot be read."""


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file. `path` is relative to the archive; `facts` counts the rows with `seq` 0."""

    path: str
    rows: int
    sha256: str
    bytes: int
    stream: str
    date: str
    facts: int
    first_serial: int
    last_serial: int


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that were archived together as `batch`, possibly merged into another batch since.

    The last of the facts was committed at `last_at_ms`.
    """

    batch: int
    first_serial: int
    last_serial: int
    facts: int
    last_at_ms: int
    archived_at_ms: int

    @property
    def seconds(self) -> float:
        """The archive lag of the last fact. Negative if the clocks of daemon and archive differ."""
        return (self.archived_at_ms - self.last_at_ms) / 1000


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of an archive.

    `start` and `end` are the clocks before and after the batch, `start_digest` and `digest` the digests
    there. A `compacted` batch is the first batch of a trimmed log: it has only the facts that the log still
    had. `epoch` is the epoch of the last fact, `epoch_starts` are all up to that epoch. `arrivals` are the
    original batches of a merged batch.
    """

    version: int = VERSION
    batch: int
    epoch: int
    first_serial: int
    last_serial: int
    start: Clock
    end: Clock
    files: list[ArchivedFile]
    facts: int
    rows: int
    start_digest: str = EMPTY
    digest: str = EMPTY
    history: str = ""
    server_name: str = ""
    first_at_ms: int = 0
    last_at_ms: int = 0
    archived_at_ms: int = 0
    compacted: bool = False
    replaces: list[int] = []
    epoch_starts: list[EpochStart] = []
    arrivals: list[Arrival] = []

    @property
    def all_arrivals(self) -> list[Arrival]:
        """The arrivals of the facts, as far as known."""
        if self.replaces or not self.facts or not self.archived_at_ms:
            return self.arrivals
        return [Arrival(**{name: getattr(self, name) for name in Arrival.__struct_fields__})]

    @property
    def name(self) -> str:
        """The name of the manifest file in the archive."""
        return f"{MANIFESTS}/{self.batch}.json"


def manifests(store: Store) -> list[Manifest]:
    """Return the current manifests in order. Raises `BadArchive` unless each continues the previous one."""
    try:
        kept = current(decode(batch, text) for batch, text in texts(store).items())
    except BadArchive as error:
        raise BadArchive(f"{store}: {error}") from error
    for before, after in pairwise(kept):
        if after.first_serial != before.last_serial + 1:
            raise BadArchive(
                f"{store}: batch {before.batch} ends at serial {before.last_serial},"
                f" batch {after.batch} begins at {after.first_serial}"
            )
        if after.start_digest != before.digest or (after.history, after.server_name) != (
            before.history,
            before.server_name,
        ):
            raise BadArchive(f"{store}: batch {after.batch} has another history than batch {before.batch}")
    return kept


def next_batch(store: Store) -> int:
    """Return the number of the next batch, which no manifest has ever used."""
    taken = [int(stem) for name in store.names(MANIFESTS) if (stem := name.partition(".")[0]).isdigit()]
    return max(taken, default=-1) + 1


def write_manifest(store: Store, manifest: Manifest) -> None:
    """Add a batch to the archive. Raises FileExistsError if its number is in use."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    store.write(manifest.name, data, new=True)


def texts(store: Store) -> dict[int, bytes]:
    """Return the text of every manifest by number. Retries if a merge removes manifests meanwhile."""
    listed: list[str] = []
    while True:
        before, listed = listed, store.names(MANIFESTS)
        try:
            return {
                int(stem): store.read(f"{MANIFESTS}/{name}")
                for name in listed
                if (stem := name.partition(".")[0]).isdigit() and name == f"{stem}.json"
            }
        except NotFound:
            if listed == before:
                raise


def current(found: Iterable[Manifest]) -> list[Manifest]:
    """Return the manifests that no other one replaces, in order of serial."""
    found = list(found)
    replaced = {batch for manifest in found for batch in manifest.replaces}
    kept = [manifest for manifest in found if manifest.batch not in replaced]
    return sorted(kept, key=lambda manifest: manifest.first_serial)


def decode(batch: int, text: bytes) -> Manifest:
    """Decode the manifest of a batch. Raises `BadArchive`."""
    name = f"{MANIFESTS}/{batch}.json"
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadArchive(f"{name} is not a valid manifest: {error}") from error
    if manifest.version != VERSION:
        raise BadArchive(f"{name} has version {manifest.version}; this release supports {VERSION}")
    if manifest.batch != batch:
        raise BadArchive(f"{name} is the manifest of batch {manifest.batch}")
    return manifest
