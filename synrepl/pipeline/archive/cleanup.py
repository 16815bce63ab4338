"""Cleanup of files that crashes and merges leave in an archive."""

import re
from collections.abc import Sequence
from typing import Final

from synrepl.pipeline.archive.manifest import MANIFESTS, Manifest
from synrepl.pipeline.store import Store

__all__ = ["next_batch", "tidy"]

GRACE_MS: Final = 3600 * 1000
"""How long the files of merged batches stay, for readers that are still reading them."""

UNFINISHED: Final = re.compile(r"\.?[0-9]+\.json\.[0-9a-f]{8}")
"""The name that `Store.writing` gives to an incomplete manifest."""


def next_batch(store: Store) -> int:
    """Return the number of the next batch, which no manifest has ever used."""
    taken = [int(stem) for name in store.names(MANIFESTS) if (stem := name.partition(".")[0]).isdigit()]
    return max(taken, default=-1) + 1


def tidy(store: Store, kept: Sequence[Manifest], *, now_ms: int) -> int:
    """Remove unfinished batches and manifests, and batches merged more than `GRACE_MS` ago.

    Returns the number of removed folders. The caller must hold the lock of the archive.
    """
    for name in store.names(MANIFESTS):
        if UNFINISHED.fullmatch(name):
            store.remove(f"{MANIFESTS}/{name}")
    numbers = {manifest.batch for manifest in kept}
    merged = {batch: manifest for manifest in kept for batch in manifest.replaces}
    for batch in merged:
        store.remove(f"{MANIFESTS}/{batch}.json")
    gone = 0
    for stream in _folders(store, "", "stream="):
        for date in _folders(store, stream, "date="):
            for folder in _folders(store, date, "batch="):
                text = folder.rpartition("=")[2]
                batch = int(text) if text.isdigit() else -1
                if batch in numbers:
                    continue
                if batch in merged and now_ms - merged[batch].archived_at_ms < GRACE_MS:
                    continue
                store.remove_folder(folder)
                gone += 1
    return gone


def _folders(store: Store, parent: str, prefix: str) -> list[str]:
    inside = f"{parent}/" if parent else ""
    return [inside + name for name in store.names(parent) if name.startswith(prefix)]
