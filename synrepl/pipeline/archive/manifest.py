"""Manifests: what an archive is. Whatever no manifest names is not part of it.

``_manifests/<batch>.json``, each written whole, once, after all its files are on disk. A batch holds the
facts from `first_serial` to `last_serial`, all of them: those of the next batch follow. Batches may be
merged: then a new one `replaces` them; they do not count any more, and are removed soon after.
"""

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
    "manifests",
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
    """A Parquet file. `path` is relative to the archive; `rows` counts lines, `facts` those of `seq` 0."""

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
    """Facts that were archived together, as this `batch`, perhaps merged into another since; the last of them
    was committed at `last_at_ms`."""

    batch: int
    first_serial: int
    last_serial: int
    facts: int
    last_at_ms: int
    archived_at_ms: int

    @property
    def seconds(self) -> float:
        """How long the last of them waited. Negative if the clocks of daemon and archive differ."""
        return (self.archived_at_ms - self.last_at_ms) / 1000


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One batch.

    `start` and `end` are the clocks before and after it, `start_digest` and `digest` the digests there,
    `start_serial` the serial before it. A `compacted` batch is the first of an archive of a log that had been
    trimmed: of its facts only those are there that the log still had. `epoch` is that of its last fact,
    `turns` are all up to that one. `arrivals` tell of a merged batch when its facts came.
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
    def came(self) -> list[Arrival]:
        """When its facts came, as far as that is known."""
        if self.replaces or not self.facts or not self.archived_at_ms:
            return self.arrivals
        return [Arrival(**{name: getattr(self, name) for name in Arrival.__struct_fields__})]

    @property
    def name(self) -> str:
        """Its file's name in the archive."""
        return f"{MANIFESTS}/{self.batch}.json"


def manifests(store: Store) -> list[Manifest]:
    """All that count, in order. Raises `BadArchive` unless each goes on where the one before it ends."""
    found = {batch: _decoded(store, batch, text) for batch, text in texts(store).items()}
    replaced = {batch for manifest in found.values() for batch in manifest.replaces}
    kept = [manifest for batch, manifest in found.items() if batch not in replaced]
    kept.sort(key=lambda manifest: manifest.first_serial)
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
            raise BadArchive(f"{store}: batch {after.batch} is of another history than batch {before.batch}")
    return kept


def write_manifest(store: Store, manifest: Manifest) -> None:
    """From here on this batch is part of the archive. Raises FileExistsError if its number is taken."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    store.write(manifest.name, data, new=True)


def texts(store: Store) -> dict[int, bytes]:
    """Every manifest as it stands there, by number. What is merged meanwhile is seen as it is afterwards."""
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


def _decoded(store: Store, batch: int, text: bytes) -> Manifest:
    name = f"{MANIFESTS}/{batch}.json"
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadArchive(f"{store}: {name} is no manifest: {error}") from error
    if manifest.version != VERSION:
        raise BadArchive(f"{store}: {name} is of version {manifest.version}; this release knows {VERSION}")
    if manifest.batch != batch:
        raise BadArchive(f"{store}: {name} says that it is of batch {manifest.batch}")
    return manifest
