"""Comparison of the scanned files of an archive with each other, and with the log of its Delta table."""

from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.row_files import map_files, read_listed, sha256_of, within
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.audit_findings import AuditFindings, ChainBreak
from synrepl.pipeline.audit.file_scan import SEEN, FileScan, ListedFile
from synrepl.pipeline.driver import TASK, Driver, Partitions, Work
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from synrepl.streams.digest import EMPTY

ORDERED: Final = 10_000
"""Number of scans that the driver loads together."""

NUMBERED: Final = pa.schema([(TASK, pa.int32()), *SEEN])

ANCHORS: Final = 20_000
"""Approximate maximum number of digests to compare with a daemon."""

ODD: Final = {
    "doubled-row": "is duplicated",
    "missing-row": "is missing",
    "out-of-order": "comes after later rows",
}


Tokens = dict[str, tuple[int, ...]]
"""The first and the last token of each writer."""


class AuditState(msgspec.Struct):
    """A serial with its digest (empty: unknown), and the known last tokens and serials by stream and writer.

    A writer without a token is at `initial` (None: unknown), or unknown if its stream is in `lost`.
    """

    serial: int = 0
    digest: str = EMPTY
    tokens: dict[tuple[str, str], int] = {}
    serials: dict[tuple[str, str], int] = {}
    lost: set[str] = set()
    initial: int | None = 0

    def token(self, stream: str, writer: str) -> int | None:
        """Return the token of a writer; None if it is unknown."""
        return self.tokens.get((stream, writer), None if stream in self.lost else self.initial)


class AuditSpan(msgspec.Struct, kw_only=True):
    """Serials from `first` to `last`, whose files have no others. `digest` is of the fact before `first`.

    `starts` has the last token (None: unknown) and serial of each writer before `first`. Of `broken` streams
    (with `is_uneven`: of all) each fact must be compared with the previous one of its writer. `unknown` are
    streams with an unreadable file, whose gaps are not reported. `short` files differ from the log in rows.
    """

    first: int
    last: int
    digest: str
    starts: dict[tuple[str, str], tuple[int | None, int]]
    is_compacted: bool
    is_uneven: bool = False
    broken: set[str] = set()
    unknown: set[str] = set()
    short: list[FileScan] = []


def compare(
    table: ArchiveTable, files: Any, scans: Partitions, found: AuditFindings, *, deep: bool = False
) -> "Comparison":
    """Compare the files of a table, by their scans (`SEEN`)."""
    compared = Comparison(table, files, found, deep)
    numbered = scans.map(_number, NUMBERED).repartition(len(files) // ORDERED + 1)
    ordered = (scan for batch in numbered.map(_sort, SEEN) for scan in batch["seen"])
    compared.run(msgspec.json.decode(scan.as_buffer(), type=FileScan) for scan in ordered)
    return compared


def _number(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        numbers = pc.divide(batch["rank"], ORDERED).cast(pa.int32())
        yield pa.record_batch([numbers, batch["rank"], batch["seen"]], NUMBERED)


def _sort(batches: Iterable[Any]) -> Iterator[Any]:
    table = pa.Table.from_batches(batches, NUMBERED)
    yield from table.sort_by("rank").select(SEEN.names).cast(SEEN).to_batches()


class Comparison(msgspec.Struct, dict=True):
    """Comparison that reports obvious problems to `found`, and collects suspicious `spans` for `explain`.

    "The log" is that of the Delta table. `tails` are writers whose last fact is not at their position in the
    log. The bytes of `changed` files do not have the checksum in their names; `unreadable` files are not read
    again. `reported` are the codes and serials of reported rows, `anchors` digests of the files by serial.
    """

    table: ArchiveTable
    files: Any
    found: AuditFindings
    is_deep: bool = False
    at: AuditState = msgspec.field(default_factory=AuditState)
    spans: list[AuditSpan] = []
    tails: list[ChainBreak] = []
    changed: set[str] = set()
    unreadable: set[str] = set()
    reported: set[tuple[str, int]] = set()
    anchors: dict[int, str] = {}
    count: int = 0
    facts: int = 0
    rows: int = 0
    bytes: int = 0

    def run(self, scans: Iterable[FileScan]) -> None:
        """Compare the files of these scans in order of serial; only those of one span are in memory."""
        span, end = None, self.table.end
        self.at.initial = None if end.compacted_upto else 0
        for some in _overlapping(scans):
            span = self._compare_span(some)
        if end.is_compacted:
            return
        start = max(self.at.serial, end.compacted_upto)
        if start < end.last_serial:
            self._report_gap(start + 1, end.last_serial)
            return
        is_same = self.at.digest in (end.digest, "")
        if not is_same:
            why = f"the digest of serial {end.last_serial} in the log of the table is not that of the fact"
            self.found.add("table", why, serials=(end.last_serial,))
        self.tails = list(self._tails())
        if span is not None and (self.tails or not is_same):
            span.is_uneven = True
            self._choose(span)

    def _tails(self) -> Iterator[ChainBreak]:
        end = self.table.end
        unknown = self.at.lost.union(start.stream for start in end.epoch_starts)
        for stream, writers in end.end.items():
            for writer, token in writers.items() if stream not in unknown else ():
                here = self.at.token(stream, writer)
                if here is not None and here != token:
                    yield ChainBreak(
                        stream=stream,
                        writer=writer,
                        serial=end.last_serial + 1,
                        expected=here,
                        prev_token=token,
                        token=token,
                        after=self.at.serials.get((stream, writer), 0),
                    )

    def readable(self, first: int, last: int) -> Any:
        """Return the readable files whose serials overlap the range `first` to `last`."""
        return self.readable_of([(first, last)])

    def readable_of(self, ranges: Iterable[tuple[int, int]]) -> Any:
        """Return the readable files whose serials overlap one of these ranges, each once."""
        found = [within(self.files, first, last) for first, last in ranges]
        paths = pa.concat_tables(found)["path"].unique()
        found = self.files.filter(pc.is_in(self.files["path"], paths))
        return found.filter(pc.invert(_is_named(found, self.unreadable)))

    def count_facts(self) -> None:
        """Report a number of facts that is not that of the batches: nothing else tells of trimmed serials.

        Other errors explain it.
        """
        upto = self.table.end.compacted_upto
        if not upto or any(one.severity == "error" for one in self.found.listed()):
            return
        expected = sum(one.facts for one in self._batches)
        if self._batches and self.facts != expected:
            why = f"the files have {self.facts:,} facts, but the log of the table counts {expected:,}"
            self.found.add("table", why, serials=(1, upto))

    def map(self, driver: Driver, files: Any, work: Work, schema: Any) -> Partitions:
        """Return the results of `work`, called in tasks with the rows of these files (`ROWS`)."""
        return map_files(driver, files, partial(_read, self.table.store, work), schema)

    def report(
        self, what: str, why: str, stream: str, writer: str, tokens: tuple[int, ...], serials: tuple[int, ...]
    ) -> None:
        """Add a finding about facts, with the readable file that should contain the first of them, if any."""
        files = self.readable(serials[0], serials[0])
        paths = files.filter(pc.equal(files["stream"], stream))["path"].to_pylist()
        self.found.add(what, why, stream, writer, tokens, serials, paths[0] if paths else "")

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
                why = f"{file.path} has {scan.bytes} bytes, and not {file.bytes} as in the log of the table"
            else:
                why = f"{file.path} has bytes with checksum {scan.sha256}, not the one in its name"
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
                why = f"{file.path} of {file.stream}, serials {file.first_serial} to {file.last_serial}, has"
                why += f" rows of {' and '.join(scan.strangers) or f'serials {scan.first} to {scan.last}'}"
                self._report_file("misplaced-row", why, scan)
            return
        if any(odd.what == "out-of-order" for odd in scan.odd):
            # Rows that seem to be missing may be at another position in the file.
            span.is_uneven = True
            scan.odd = [odd for odd in scan.odd if odd.what != "missing-row"]
        for odd in scan.odd:
            self.reported.add((odd.what, odd.serial))
            why = f"row {odd.seq} of serial {odd.serial} {ODD[odd.what]}"
            self.found.add(odd.what, why, file.stream, odd.writer, (odd.token,), (odd.serial,), file.path)
        if (scan.rows, scan.first, scan.last) != (file.rows, file.first_serial, file.last_serial):
            span.is_uneven = True
            span.short.append(scan)

    def _report_file(self, what: str, why: str, scan: FileScan) -> None:
        """Report a problem of a file for each of its writers, known from its rows or else from the log."""
        file, runs = scan.file, {} if scan.strangers else scan.runs
        moved: Tokens = {writer: (run.low, run.high) for writer, run in runs.items()} or self._moved(file)
        serials = (file.first_serial, file.last_serial)
        for writer, tokens in sorted(moved.items()) or [("", ())]:
            self.found.add(what, why, file.stream, writer, tokens, serials, file.path)

    def _moved(self, file: ListedFile) -> Tokens:
        """Return the ranges of tokens of the writers in a file, from the clocks of the batches around it."""
        before = [one.end for one in self._batches if one.last_serial < file.first_serial]
        if before and not before[-1]:
            return {}  # the commit was removed from the log of the table
        after = next((one.end for one in self._batches if one.last_serial >= file.last_serial), {})
        start = before[-1].get(file.stream, {}) if before else {}
        return {
            writer: (start.get(writer, 0) + 1, token)
            for writer, token in after.get(file.stream, {}).items()
            if token > start.get(writer, 0)
        }

    @cached_property
    def _batches(self) -> list[Batch]:
        """The batches, read when first needed; none if they cannot be read, which is reported."""
        try:
            return self.table.batches()
        except BadArchive as error:
            self.found.add("table", str(error))
            return []

    def _logged_digest(self, serial: int) -> str:
        """Return the digest at a serial from the log; empty if no batch ends there."""
        return next((one.digest for one in self._batches if one.last_serial == serial), "")

    def _report_gap(self, first: int, last: int) -> None:
        self.found.add("gap", f"no file of the table has serials {first} to {last}", serials=(first, last))

    # One span

    def _compare_span(self, scans: list[FileScan]) -> AuditSpan:
        """Compare the files of a span with each other and with those before them."""
        at, end = self.at, self.table.end
        first, last = scans[0].file.first_serial, max(one.file.last_serial for one in scans)
        trimmed = None
        if first <= end.compacted_upto < last:
            # Releases up to 26.11.1 merged files of both parts.
            trimmed = self._trimmed_part(scans, first)
            first = end.compacted_upto + 1
        if end.compacted_upto and at.serial <= end.compacted_upto < first:
            # The clock after the compacted part is in the log.
            at.serial, at.digest = end.compacted_upto, self._logged_digest(end.compacted_upto)
            for stream, origin in end.origin.items():
                at.tokens.update({(stream, writer): token for writer, token in origin.items()})
        is_compacted = first <= end.compacted_upto
        if first > at.serial + 1 and not is_compacted:
            self._report_gap(at.serial + 1, first - 1)
            at.digest, at.initial = "", None
            at.tokens.clear()
        writers = {(one.file.stream, writer) for one in scans for writer in one.runs}
        starts = {key: (at.token(*key), at.serials.get(key, 0)) for key in writers}
        span = AuditSpan(first=first, last=last, digest=at.digest, starts=starts, is_compacted=is_compacted)
        for scan in scans:
            self._compare_file(scan, span)
        if trimmed is not None:
            span.is_uneven, trimmed.unknown = True, span.unknown
            self._choose(trimmed)
        ends = [one.digest for one in scans if one.last == last and one.file.path not in self.unreadable]
        at.serial, at.digest = last, ends[0] if ends else self._logged_digest(last)
        if ends:
            self.count += 1
            if self.count % (len(self.files) // ANCHORS + 1) == 0:
                self.anchors[last] = ends[0]
        facts, serials = sum(one.facts for one in scans), sum(one.serials for one in scans)
        self.facts += facts
        self.rows += sum(one.rows for one in scans)
        self.bytes += sum(one.bytes for one in scans)
        if not is_compacted:
            if not span.unknown and trimmed is None:
                size = span.last - span.first + 1
                if (facts, serials) != (size, (span.first + span.last) * size // 2):
                    span.is_uneven = True
            dense = [one for one in scans if one.file.last_serial > end.compacted_upto]
            span.broken |= set(self._follow_writers(dense))
        if self.is_deep:
            span.broken |= {one.file.stream for one in scans}
        if self.is_deep or span.is_uneven or span.broken:
            self._choose(span)
        return span

    def _trimmed_part(self, scans: list[FileScan], first: int) -> AuditSpan:
        """Return the part of a span that belongs to the trimmed part of the log, to be examined."""
        writers = {(one.file.stream, writer) for one in scans for writer in one.runs}
        return AuditSpan(
            first=first,
            last=self.table.end.compacted_upto,
            digest="",
            starts={key: (self.at.token(*key), self.at.serials.get(key, 0)) for key in writers},
            is_compacted=True,
            is_uneven=True,
        )

    def _follow_writers(self, scans: list[FileScan]) -> Iterator[str]:
        """Follow the tokens of each writer through these files. Yields the streams with a break."""
        at = self.at
        for scan in scans:
            stream = scan.file.stream
            if scan.file.path in self.unreadable:
                at.lost.add(stream)
                at.tokens = {key: token for key, token in at.tokens.items() if key[0] != stream}
                continue
            for writer, run in scan.runs.items():
                if run.last_serial <= self.table.end.compacted_upto:
                    continue
                here = at.token(stream, writer)
                if not run.goes_on or not (here is None or run.before in (None, here)):
                    yield stream
                if run.after is not None:
                    at.tokens[stream, writer] = run.after
                at.serials[stream, writer] = run.last_serial

    def _choose(self, span: AuditSpan) -> None:
        """Add a span to examine. It is joined to an adjacent one, unless files are damaged or compacted."""
        before = self.spans[-1] if self.spans else None
        if before is not None and before.last == span.last:
            return
        is_adjacent = before is not None and before.last + 1 == span.first and not before.is_compacted
        if before is None or not is_adjacent or before.unknown or span.unknown or before.short or span.short:
            self.spans.append(span)
            return
        before.last = span.last
        before.starts = span.starts | before.starts
        before.is_uneven |= span.is_uneven
        before.broken |= span.broken


def _read(store: Store, work: Work, batches: Iterable[Any]) -> Iterator[Any]:
    """Call `work` with the rows of files. The scan has checked those whose bytes were changed."""
    return work(read_listed(store, batches, ROWS, is_examined=True))


def _overlapping(scans: Iterable[FileScan]) -> Iterator[list[FileScan]]:
    """Group the scans of files whose serials overlap."""
    some: list[FileScan] = []
    upto = 0
    for scan in scans:
        if some and scan.file.first_serial > upto:
            yield some
            some = []
        some.append(scan)
        upto = max(upto, scan.file.last_serial)
    if some:
        yield some


def _is_named(files: Any, paths: Iterable[str]) -> Any:
    return pc.is_in(files["path"], pa.array(sorted(paths), pa.string()))
