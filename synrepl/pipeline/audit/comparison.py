"""Comparison of the scanned files of an archive with the log of its table, and with each other."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from synrepl.pipeline.archive.reading import within
from synrepl.pipeline.archive.table import ArchiveTable, Batch, sha256_of
from synrepl.pipeline.audit.file_scan import FileProblem, FileScan, ListedFile
from synrepl.pipeline.audit.findings import AuditFindings
from synrepl.pipeline.store import BadArchive
from synrepl.streams.digest import EMPTY

__all__ = ["AuditSpan", "Comparison", "TokenGap", "compare"]

ORDERED: Final = 10_000
"""Number of scans that the driver loads together."""

ANCHORS: Final = 20_000
"""Maximum number of digests to compare with a daemon."""

ODD: Final = {
    "doubled-row": "is duplicated",
    "missing-row": "is missing",
    "out-of-order": "comes after later ones",
}

Positions = dict[tuple[str, str], int]
"""The position of each writer of a stream, by stream and writer."""


class WriterClock(msgspec.Struct):
    """The last tokens and serials of writers, as far as known.

    Other writers are at the token `initial`, or unknown (None, and those of the streams `lost`).
    """

    tokens: Positions
    serials: Positions
    lost: set[str]
    initial: int | None

    def token(self, stream: str, writer: str) -> int | None:
        """Return the token of a writer; None if it is unknown."""
        return self.tokens.get((stream, writer), None if stream in self.lost else self.initial)

    def copied(self) -> "WriterClock":
        """Return a copy."""
        return WriterClock(self.tokens.copy(), self.serials.copy(), self.lost.copy(), self.initial)


class AuditSpan(msgspec.Struct, kw_only=True):
    """Serials from `first` to `last`, of which no other file has any.

    `start` and `digest` are the clock and the digest before the span, as far as known. In `broken` streams,
    the tokens of a writer are not consecutive. `unknown` are the streams with an unreadable file, whose holes
    are not reported. `short` files have other counts than in the log.
    """

    first: int
    last: int
    start: WriterClock
    digest: str
    is_compacted: bool
    is_uneven: bool = False
    broken: set[str] = set()
    unknown: set[str] = set()
    short: list[FileScan] = []


class TokenGap(msgspec.Struct, frozen=True):
    """Missing facts of a writer: tokens in ``(token, upto]``, at serials between `after` and `before`."""

    stream: str
    writer: str
    token: int
    upto: int
    after: int
    before: int


def compare(
    table: ArchiveTable, files: Any, scans: DataFrame, found: AuditFindings, *, deep: bool = False
) -> "Comparison":
    """Compare the files of a table, by their scans (a frame of `SEEN`)."""
    compared = Comparison(table, files, found, deep=deep)
    ordered = scans.repartitionById(len(files) // ORDERED + 1, (F.col("rank") / ORDERED).cast("int"))
    for row in ordered.sortWithinPartitions("rank").toLocalIterator():
        compared.add(msgspec.json.decode(row["seen"], type=FileScan))
    compared.finish()
    return compared


class Comparison:
    """Comparison that reports obvious problems, and collects suspicious `spans` for `Explanation`.

    The scans must be added in order of serial; only those of one span are in memory. `tails` are holes before
    the end of the archive. `changed` files have other bytes than their name says; `unreadable` ones are not
    read again. `reported` are the codes and serials of reported rows. `anchors` are digests by serial, as
    found in the files.
    """

    def __init__(self, table: ArchiveTable, files: Any, found: AuditFindings, *, deep: bool = False) -> None:
        self.table = table
        self.files = files
        self.spans: list[AuditSpan] = []
        self.tails: list[TokenGap] = []
        self.changed: set[str] = set()
        self.unreadable: set[str] = set()
        self.reported: set[tuple[str, int]] = set()
        self.anchors: dict[int, str] = {}
        self.void = {start.stream for start in table.end.epoch_starts if start.stream}
        self.facts = self.rows = self.bytes = 0
        self._found = found
        self._is_deep = deep
        self._scans: list[FileScan] = []
        self._last = 0
        self._digest = EMPTY
        self._anchor_step = 1
        self._span: AuditSpan | None = None
        self._spans = 0
        self._clock = WriterClock({}, {}, set(), None if table.end.compacted_upto else 0)

    def add(self, scan: FileScan) -> None:
        """Compare the next file."""
        self.facts += scan.facts
        self.rows += scan.rows
        self.bytes += scan.bytes
        file = scan.file
        upto = max((one.file.last_serial for one in self._scans), default=self._last)
        end = self.table.end
        if upto <= end.compacted_upto < file.first_serial and self._last < end.compacted_upto:
            # The clock after the compacted part is in the log.
            self._close()
            self._last = end.compacted_upto
            self._digest = self._logged_digest(end.compacted_upto)
            for stream, writers in end.origin.items():
                self._clock.tokens.update({(stream, writer): token for writer, token in writers.items()})
        elif file.first_serial > upto:
            self._close()
        self._scans.append(scan)

    def finish(self) -> None:
        """Compare the end of the archive."""
        self._close()
        end = self.table.end
        if end.is_compacted:
            return
        start = max(self._last, end.compacted_upto)
        if start < end.last_serial:
            self._report_gap(start + 1, end.last_serial)
            return
        is_same = self._digest in (end.digest, "")
        if not is_same:
            why = f"the log has another digest than the last fact, serial {end.last_serial}"
            self._found.add("table", why, serials=(end.last_serial, end.last_serial))
        self.tails = list(self._tails())
        if self._span is not None and (self.tails or not is_same):
            self._span.is_uneven = True
            self._choose(self._span)

    def _tails(self) -> Iterator[TokenGap]:
        end = self.table.end
        for stream, writers in end.end.items():
            for writer, token in writers.items() if stream not in self._clock.lost | self.void else ():
                here = self._clock.token(stream, writer)
                if here is not None and here != token:
                    after = self._clock.serials.get((stream, writer), 0)
                    yield TokenGap(stream, writer, here, token, after, end.last_serial + 1)

    def readable(self, first: int, last: int) -> Any:
        """Return the readable ones of `files` with serials from `first` to `last`."""
        found = within(self.files, first, last)
        unreadable = pa.array(sorted(self.unreadable), pa.string())
        return found.filter(pc.invert(pc.is_in(found["path"], unreadable)))

    def file_of(self, stream: str, serial: int) -> str:
        """Return the path of the readable file that should contain this fact, or an empty text."""
        files = self.readable(serial, serial)
        paths = files.filter(pc.equal(files["stream"], stream))["path"].to_pylist()
        return paths[0] if paths else ""

    # One file

    def _compare_file(self, scan: FileScan, span: AuditSpan) -> None:
        file, sha256 = scan.file, sha256_of(scan.file.path)
        if not scan.exists:
            self._report_file("missing-file", f"{file.path} does not exist", scan)
        elif sha256 and scan.sha256 != sha256:
            named = self.files.filter(pc.match_substring(self.files["path"], scan.sha256))["path"].to_pylist()
            if named:
                why = f"{file.path} has the bytes of {named[0]}"
            elif scan.bytes != file.bytes:
                why = f"{file.path} has {scan.bytes} bytes, the log of the table says {file.bytes}"
            else:
                why = f"{file.path} has another checksum than in its name"
            self.changed.add(file.path)
            span.is_uneven = True
            self._report_file("changed-file", why, scan)
        elif scan.unreadable:
            self._report_file("changed-file", f"{file.path} cannot be read: {scan.unreadable}", scan)
        is_misplaced = bool(scan.strangers) or (
            bool(scan.rows) and not file.first_serial <= scan.first <= scan.last <= file.last_serial
        )
        if not scan.exists or scan.unreadable or is_misplaced:
            span.unknown.add(file.stream)
            self.unreadable.add(file.path)
            if is_misplaced and file.path not in self.changed:
                whose = f"of {' and '.join(scan.strangers)}, " if scan.strangers else ""
                why = f"{file.path} holds rows {whose}serials {scan.first} to {scan.last}"
                self._report_file("misplaced-row", why, scan)
            return
        if any(odd.what == "out-of-order" for odd in scan.odd):
            # Rows that seem to be missing may be at another position in the file.
            span.is_uneven = True
            scan.odd = [odd for odd in scan.odd if odd.what != "missing-row"]
        for odd in scan.odd:
            self.reported.add((odd.what, odd.serial))
            self._report_odd(scan.file, odd)
        if (scan.rows, scan.first, scan.last) != (file.rows, file.first_serial, file.last_serial):
            span.is_uneven = True
            span.short.append(scan)

    def _report_file(self, what: str, why: str, scan: FileScan) -> None:
        """Report a problem of a file for each writer, known from the rows or else from the log."""
        file, runs = scan.file, {} if scan.strangers else scan.runs
        moved = {writer: (run.low, run.high) for writer, run in runs.items()} or self._moved(file)
        named: list[tuple[str, tuple[int | None, int | None]]] = [*sorted(moved.items())]
        serials = (file.first_serial, file.last_serial)
        for writer, tokens in named or [("", (None, None))]:
            self._found.add(what, why, file.stream, writer, tokens, serials, file.path)

    def _moved(self, file: ListedFile) -> dict[str, tuple[int, int]]:
        """Return the ranges of tokens of the writers in a file, from the clocks of the batches around it."""
        before = [one.end for one in self._batches if one.last_serial < file.first_serial]
        after = next((one.end for one in self._batches if one.last_serial >= file.last_serial), {})
        start = before[-1].get(file.stream, {}) if before else {}
        return {
            writer: (start.get(writer, 0) + 1, token)
            for writer, token in after.get(file.stream, {}).items()
            if token > start.get(writer, 0)
        }

    @cached_property
    def _batches(self) -> list[Batch]:
        """The batches, which are read only if a file is damaged."""
        try:
            return self.table.batches()
        except BadArchive as error:
            self._found.add("table", str(error))
            return []

    def _logged_digest(self, serial: int) -> str:
        """Return the digest at a serial from the log; empty if no batch ends there."""
        return next((one.digest for one in self._batches if one.last_serial == serial), "")

    def _report_odd(self, file: ListedFile, odd: FileProblem) -> None:
        why = f"row {odd.seq} of serial {odd.serial} {ODD[odd.what]}"
        tokens, serials = (odd.token, odd.token), (odd.serial, odd.serial)
        self._found.add(odd.what, why, file.stream, odd.writer, tokens, serials, file.path)

    def _report_gap(self, first: int, last: int) -> None:
        self._found.add("gap", f"no file of the table has serials {first} to {last}", serials=(first, last))

    # One span

    def _close(self) -> None:
        """Compare the files of a span with each other and with those before them."""
        scans, self._scans = self._scans, []
        if not scans:
            return
        first, last = scans[0].file.first_serial, max(one.file.last_serial for one in scans)
        is_compacted = first <= self.table.end.compacted_upto
        if first > self._last + 1 and not is_compacted:
            self._report_gap(self._last + 1, first - 1)
            self._digest, self._clock.initial = "", None
            self._clock.tokens.clear()
        start = self._clock.copied()
        span = AuditSpan(first=first, last=last, start=start, digest=self._digest, is_compacted=is_compacted)
        self._last, self._span = span.last, span
        for scan in scans:
            self._compare_file(scan, span)
        ends = [one.digest for one in scans if one.last == span.last and one.file.path not in self.unreadable]
        self._digest = ends[0] if ends else self._logged_digest(span.last)
        if ends:
            self._anchor(span.last, ends[0])
        if not span.is_compacted:
            if not span.unknown:
                facts, serials = sum(one.facts for one in scans), sum(one.serials for one in scans)
                size = span.last - span.first + 1
                if (facts, serials) != (size, (span.first + span.last) * size // 2):
                    span.is_uneven = True
            span.broken |= set(self._follow_writers(scans))
        if self._is_deep:
            span.broken |= {one.file.stream for one in scans}
        if self._is_deep or span.is_uneven or span.broken:
            self._choose(span)

    def _follow_writers(self, scans: list[FileScan]) -> Iterator[str]:
        """Follow the tokens of each writer through these files. Yields streams that are not consecutive."""
        for scan in scans:
            stream = scan.file.stream
            for writer, run in scan.runs.items() if scan.file.path not in self.unreadable else ():
                key, here = (stream, writer), self._clock.token(stream, writer)
                if not run.goes_on or not (here is None or run.before in (None, here)):
                    yield stream
                if run.after is not None:
                    self._clock.tokens[key] = run.after
                self._clock.serials[key] = run.last_serial
            if scan.file.path in self.unreadable:
                self._clock.lost.add(stream)
                for key in [key for key in self._clock.tokens if key[0] == stream]:
                    del self._clock.tokens[key]

    def _choose(self, span: AuditSpan) -> None:
        """Add a span to examine; adjacent ones are joined."""
        before = self.spans[-1] if self.spans else None
        if before is not None and before.last == span.last:
            return
        is_adjacent = before is not None and before.last + 1 == span.first and not before.is_compacted
        if before is None or not is_adjacent or before.unknown or span.unknown or before.short or span.short:
            self.spans.append(span)
            return
        before.last = span.last
        before.is_uneven |= span.is_uneven
        before.broken |= span.broken

    def _anchor(self, serial: int, digest: str) -> None:
        self._spans += 1
        if self._spans % self._anchor_step == 0:
            self.anchors[serial] = digest
        if len(self.anchors) > ANCHORS:
            self._anchor_step *= 2
            self.anchors = dict(list(self.anchors.items())[1::2])
