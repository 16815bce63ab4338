"""Comparison of the scanned files of an archive with its manifests."""

from collections.abc import Mapping, Sequence

from synrepl.pipeline.archive.manifest import ArchivedFile, Manifest
from synrepl.pipeline.audit.file_scan import FileProblem, FileScan, TokenRun
from synrepl.pipeline.audit.findings import AuditFindings

__all__ = ["Comparison"]


class Comparison:
    """Comparison that reports obvious problems, and collects suspicious batches for `Explanation`.

    `uneven` batches have missing or duplicate serials. In `broken` pairs of batch and stream, the tokens of a
    writer are not consecutive. `unknown` are the streams of a batch with an unreadable file, whose holes are
    not reported. `short` files have other counts than in the manifest, `changed` files other bytes. In
    `ahead` pairs of batch and stream, the clock differs from the rows.
    """

    def __init__(
        self, manifests: Sequence[Manifest], seen: Mapping[str, FileScan], found: AuditFindings
    ) -> None:
        self.manifests = manifests
        self.seen = seen
        self.readable: dict[str, ArchivedFile] = {}
        self.void = {
            epoch_start.stream
            for manifest in manifests
            for epoch_start in manifest.epoch_starts
            if epoch_start.stream
        }
        self.uneven: set[int] = set()
        self.broken: set[tuple[int, str]] = set()
        self.unknown: dict[int, set[str]] = {}
        self.short: dict[int, list[ArchivedFile]] = {}
        self.changed: set[str] = set()
        self.ahead: set[tuple[int, str]] = set()
        self._found = found

    def compare(self) -> None:
        """Compare every file and batch."""
        by_sha256 = {file.sha256: file.path for manifest in self.manifests for file in manifest.files}
        for manifest in self.manifests:
            for file in manifest.files:
                self._compare_file(manifest, file, by_sha256)
            self._compare_batch(manifest)

    def file_of(self, stream: str, serial: int) -> str:
        """Return the path of the readable file that should contain this fact, or an empty text."""
        for path, file in self.readable.items():
            if file.stream == stream and file.first_serial <= serial <= file.last_serial:
                return path
        return ""

    # One file

    def _compare_file(self, manifest: Manifest, file: ArchivedFile, by_sha256: dict[str, str]) -> None:
        seen = self.seen[file.path]
        if not seen.exists:
            self._report_file("missing-file", f"{file.path} does not exist", manifest, file, {})
        elif (seen.bytes, seen.sha256) != (file.bytes, file.sha256):
            other = by_sha256.get(seen.sha256)
            if other is not None:
                why = f"{file.path} has the bytes of {other}"
            elif seen.bytes != file.bytes:
                why = f"{file.path} has {seen.bytes} bytes, its manifest says {file.bytes}"
            else:
                why = f"{file.path} has another checksum than in its manifest"
            self.changed.add(file.path)
            self.uneven.add(manifest.batch)
            runs = {} if seen.strangers else seen.runs
            self._report_file("changed-file", why, manifest, file, runs)
        elif seen.unreadable:
            why = f"{file.path} cannot be read: {seen.unreadable}"
            self._report_file("changed-file", why, manifest, file, {})
        is_misplaced = bool(seen.strangers) or (
            bool(seen.rows) and not manifest.first_serial <= seen.first <= seen.last <= manifest.last_serial
        )
        if not seen.exists or seen.unreadable or is_misplaced:
            self.unknown.setdefault(manifest.batch, set()).add(file.stream)
            if is_misplaced and seen.sha256 == file.sha256:
                whose = f"of {' and '.join(seen.strangers)}, " if seen.strangers else ""
                why = f"{file.path} holds rows {whose}serials {seen.first} to {seen.last}"
                self._report_file("misplaced-row", why, manifest, file, {})
            return
        self.readable[file.path] = file
        is_mixed_up = any(odd.what == "out-of-order" for odd in seen.odd)
        if is_mixed_up:
            # Rows that seem to be missing may be at another position in the file.
            self.uneven.add(manifest.batch)
            seen.odd = [odd for odd in seen.odd if odd.what != "missing-row"]
        for odd in seen.odd:
            self._report_odd(file, odd)
        counts = (seen.rows, seen.facts, seen.first, seen.last)
        if counts != (file.rows, file.facts, file.first_serial, file.last_serial):
            self.uneven.add(manifest.batch)
            self.short.setdefault(manifest.batch, []).append(file)

    def _report_file(
        self, what: str, why: str, manifest: Manifest, file: ArchivedFile, runs: dict[str, TokenRun]
    ) -> None:
        """Report a file problem for each writer, known from the rows or else from the clocks."""
        moved = {writer: (run.low, run.high) for writer, run in runs.items()} or _moved(manifest, file.stream)
        named: list[tuple[str, tuple[int | None, int | None]]] = [*sorted(moved.items())]
        for writer, tokens in named or [("", (None, None))]:
            self._found.add(
                what,
                why,
                stream=file.stream,
                writer=writer,
                tokens=tokens,
                serials=(file.first_serial, file.last_serial),
                file=file.path,
            )

    def _report_odd(self, file: ArchivedFile, odd: FileProblem) -> None:
        why = {
            "doubled-row": f"row {odd.seq} of serial {odd.serial} is duplicated",
            "missing-row": f"row {odd.seq} of serial {odd.serial} is missing",
            "out-of-order": f"row {odd.seq} of serial {odd.serial} comes after later ones",
        }[odd.what]
        self._found.add(
            odd.what,
            why,
            stream=file.stream,
            writer=odd.writer,
            tokens=(odd.token, odd.token),
            serials=(odd.serial, odd.serial),
            file=file.path,
        )

    # One batch

    def _compare_batch(self, manifest: Manifest) -> None:
        if manifest.compacted:
            return
        unknown = self.unknown.get(manifest.batch, set())
        files = sorted(manifest.files, key=lambda file: file.first_serial)
        seen = [self.seen[file.path] for file in files]
        first, last = manifest.first_serial, manifest.last_serial
        if not unknown:
            facts, serials = sum(one.facts for one in seen), sum(one.serials for one in seen)
            if (facts, serials) != (last - first + 1, (first + last) * (last - first + 1) // 2):
                self.uneven.add(manifest.batch)
            ends = [one.digest for one in seen if one.last == last]
            if ends and ends != [manifest.digest]:
                self.uneven.add(manifest.batch)
                why = f"{manifest.name} has another digest than its last fact, serial {last}"
                self._found.add("manifest", why, serials=(last, last), file=manifest.name)
        for stream in {file.stream for file in files} - unknown:
            here = dict(manifest.start.get(stream, {}))
            high = dict(here)
            for file in files:
                for writer, run in self.seen[file.path].runs.items() if file.stream == stream else ():
                    high[writer] = max(run.high, high.get(writer, run.high))
                    if not run.goes_on or run.before not in (None, here.get(writer, 0)):
                        self.broken.add((manifest.batch, stream))
                    if run.after is not None:
                        here[writer] = run.after
            if high != manifest.end.get(stream, {}) and stream not in self.void:
                self.broken.add((manifest.batch, stream))
                self.ahead.add((manifest.batch, stream))


def _moved(manifest: Manifest, stream: str) -> dict[str, tuple[int, int]]:
    """Return the ranges of tokens of the writers of a stream in a batch, from its clocks."""
    start = manifest.start.get(stream, {})
    return {
        writer: (start.get(writer, 0) + 1, token)
        for writer, token in manifest.end.get(stream, {}).items()
        if token > start.get(writer, 0)
    }
