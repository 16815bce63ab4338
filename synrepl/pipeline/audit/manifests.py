"""Consistency of manifests. A problem is a finding, not an error."""

from collections.abc import Sequence
from itertools import pairwise

from pyarrow import fs

from synrepl.pipeline.archive.manifest import MANIFESTS, BadArchive, Manifest, current, decode, texts
from synrepl.pipeline.audit.findings import AuditFindings
from synrepl.pipeline.store import Store

__all__ = ["read_manifests", "report_unnamed"]


def read_manifests(store: Store, found: AuditFindings) -> list[Manifest]:
    """Return the valid current manifests, in order of serial."""
    valid = []
    for batch, text in texts(store).items():
        try:
            valid.append(decode(batch, text))
        except BadArchive as error:
            found.add("manifest", str(error), file=f"{MANIFESTS}/{batch}.json")
    kept = current(valid)
    for manifest in kept:
        _check_sums(manifest, found)
    for before, after in pairwise(kept):
        _check_joint(before, after, found)
    paths: set[str] = set()
    for manifest in kept:
        for file in manifest.files:
            if file.path in paths:
                found.add("manifest", f"{file.path} is named twice", stream=file.stream, file=file.path)
            paths.add(file.path)
    return kept


def report_unnamed(store: Store, manifests: Sequence[Manifest], found: AuditFindings) -> None:
    """Report the files that no manifest names, left by aborted runs.

    Files of merged batches are not reported: they stay for a while, for readers.
    """
    named = {file.path for manifest in manifests for file in manifest.files}
    merged = {f"batch={batch}" for manifest in manifests for batch in manifest.replaces}
    root = store.path()
    for info in store.filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        path = info.path.removeprefix(root).lstrip("/")
        if info.type != fs.FileType.File or not path.startswith("stream=") or path in named:
            continue
        if merged.isdisjoint(path.split("/")):
            found.add("unnamed-file", f"no manifest names {path}", file=path)


def _check_sums(manifest: Manifest, found: AuditFindings) -> None:
    serials = (manifest.first_serial, manifest.last_serial)

    def wrong(why: str) -> None:
        found.add("manifest", f"{manifest.name}: {why}", serials=serials, file=manifest.name)

    span = serials[1] - serials[0] + 1
    facts, rows = sum(file.facts for file in manifest.files), sum(file.rows for file in manifest.files)
    if (facts, rows) != (manifest.facts, manifest.rows):
        wrong(f"it has {manifest.facts} facts and {manifest.rows} rows, its files have {facts} and {rows}")
    elif manifest.facts != span and not manifest.compacted:
        wrong(f"serials {serials[0]} to {serials[1]} are {span} facts, it has {manifest.facts}")
    for file in manifest.files:
        if not serials[0] <= file.first_serial <= file.last_serial <= serials[1]:
            wrong(f"{file.path} is listed with serials {file.first_serial} to {file.last_serial}")


def _check_joint(before: Manifest, after: Manifest, found: AuditFindings) -> None:
    joint = f"{after.name}, after {before.name}:"
    first, last = before.last_serial + 1, after.first_serial - 1
    if last >= first:
        found.add("gap", f"there is no manifest for serials {first} to {last}", serials=(first, last))
        return
    at = (after.first_serial, after.first_serial)
    if last < first - 1:
        why = f"{joint} it begins at serial {after.first_serial}, after the end at {before.last_serial}"
        found.add("manifest", why, serials=at, file=after.name)
        return
    if (after.history, after.server_name) != (before.history, before.server_name):
        found.add("manifest", f"{joint} their histories differ", serials=at, file=after.name)
    elif after.start_digest != before.digest:
        found.add("manifest", f"{joint} their digests differ", serials=at, file=after.name)
    elif after.start != before.end:
        found.add("manifest", f"{joint} their clocks differ", serials=at, file=after.name)
