"""Explanation of suspicious batches: the affected rows and writers, without false alarms."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession

from synrepl.pipeline.archive.manifest import Manifest
from synrepl.pipeline.audit import windows
from synrepl.pipeline.audit.comparison import Comparison
from synrepl.pipeline.audit.file_scan import read_files
from synrepl.pipeline.audit.findings import AuditFindings
from synrepl.pipeline.jobs import Progress
from synrepl.pipeline.store import Store

__all__ = ["Explanation"]


class _Hole(msgspec.Struct, frozen=True):
    """Missing facts of a writer: tokens in ``(token, upto]``, at serials between `after` and `before`."""

    stream: str
    writer: str
    token: int
    upto: int
    after: int
    before: int


class Explanation:
    """Reader of suspicious rows, which reports the problems in them."""

    def __init__(
        self, spark: SparkSession, archive: Store, compared: Comparison, found: AuditFindings
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._compared = compared
        self._found = found

    def explain(self, *, deep: bool, progress: Progress) -> None:
        """Examine the suspicious batches; with `deep`, all batches."""
        if deep:
            uneven = {manifest.batch for manifest in self._compared.manifests}
            broken = {(one.batch, file.stream) for one in self._compared.manifests for file in one.files}
        else:
            # The missing serials explain a broken chain.
            uneven = self._compared.uneven | {batch for batch, _ in self._compared.broken}
            broken = self._compared.broken | {
                (one.batch, file.stream)
                for one in self._compared.manifests
                if one.batch in self._compared.uneven
                for file in one.files
            }
        chosen = [one for one in self._compared.manifests if one.batch in uneven]
        if not chosen:
            return
        progress("rows", 0, sum(one.rows for one in chosen))
        serials, breaks = self._windows(chosen, broken)
        self._report_wrong(serials.wrong)
        self._report_missing(serials.missing, self._holes(breaks, chosen))
        self._report_unexplained(chosen)
        progress("rows", sum(one.rows for one in chosen), sum(one.rows for one in chosen))

    def _windows(
        self, chosen: Sequence[Manifest], broken: set[tuple[int, str]]
    ) -> tuple[windows.Serials, list[windows.DigestBreak]]:
        paths = self._paths(chosen)
        if not paths:
            return windows.Serials([], []), []
        # A compacted batch has holes, so its serials are not checked, but its facts are.
        spans = _spans([one for one in chosen if not one.compacted])
        serials = windows.check_serials(self._read(paths), spans)
        paths = [
            file.path
            for one in chosen
            for file in one.files
            if (one.batch, file.stream) in broken and file.path in self._compared.readable
        ]
        return serials, windows.find_breaks(self._read(paths)) if paths else []

    def _read(self, paths: Sequence[str]) -> DataFrame:
        return read_files(self._spark, self._archive, paths, self._compared.changed)

    def _paths(self, manifests: Sequence[Manifest]) -> list[str]:
        return [file.path for one in manifests for file in one.files if file.path in self._compared.readable]

    def _holes(self, breaks: Sequence[windows.DigestBreak], chosen: Sequence[Manifest]) -> list[_Hole]:
        """Return the holes of writers. Tokens that go back are reported directly."""
        holes = []
        firsts = [manifest.first_serial for manifest in chosen]
        for one in breaks:
            manifest = chosen[bisect_right(firsts, one.serial) - 1]
            is_known = one.before_serial is not None and one.before_serial >= manifest.first_serial
            if is_known:
                assert one.before_serial is not None
                assert one.before_token is not None
                after, token = one.before_serial, one.before_token
            else:
                after = manifest.first_serial - 1
                token = manifest.start.get(one.stream, {}).get(one.writer, 0)
            if one.prev_token == token or self._is_excused(one, manifest, token, is_known=is_known):
                continue
            if one.prev_token > token:
                holes.append(_Hole(one.stream, one.writer, token, one.prev_token, after, one.serial))
            else:
                self._report_chain(one.stream, one.writer, one.serial, one.prev_token, one.token, token)
        for manifest in chosen:
            unknown = self._compared.unknown.get(manifest.batch, set())
            for stream, writers in manifest.end.items():
                if stream not in unknown and not manifest.compacted:
                    holes += self._tails(manifest, stream, writers)
        return holes

    def _is_excused(
        self, one: windows.DigestBreak, manifest: Manifest, token: int, *, is_known: bool
    ) -> bool:
        """Whether a break has a legitimate cause."""
        if one.stream in self._compared.unknown.get(manifest.batch, set()):
            return True
        if manifest.compacted:
            return one.prev_token > token
        # After a loss of facts, a writer continues at an earlier position, which no clock has.
        crossed = not is_known or one.before_epoch != one.epoch
        if one.stream in self._compared.void and crossed and one.prev_token < token:
            return True
        # The clock lacks the positions of trimmed facts.
        first = self._compared.manifests[0]
        return first.compacted and not is_known and one.prev_token > token

    def _tails(self, manifest: Manifest, stream: str, writers: dict[str, int]) -> Iterator[_Hole]:
        for writer, upto in writers.items():
            token = manifest.start.get(stream, {}).get(writer, 0)
            after = manifest.first_serial - 1
            for file in manifest.files:
                run = self._compared.seen[file.path].runs.get(writer) if file.stream == stream else None
                if run is not None:
                    token, after = max(token, run.high), max(after, run.last_serial)
            if token < upto:
                yield _Hole(stream, writer, token, upto, after, manifest.last_serial + 1)

    def _report_wrong(self, wrong: Sequence[windows.WrongFacts]) -> None:
        reported = {
            (odd.what, odd.serial)
            for path in self._compared.readable
            for odd in self._compared.seen[path].odd
        }
        why = {
            "doubled-row": "serial {} or one of its rows is duplicated",
            "missing-row": "a row of serial {} is missing",
            "changed-row": "serial {} does not match its digest: the fact or the digest was changed",
        }
        spoiled = {one.serial for one in wrong if one.what != "changed-row"} | {
            serial for _, serial in reported
        }
        for one in wrong:
            if (one.what, one.serial) in reported or (one.what == "changed-row" and one.serial in spoiled):
                continue
            self._found.add(
                one.what,
                why[one.what].format(one.serial),
                stream=one.stream,
                writer=one.writer,
                tokens=(one.token, one.token),
                serials=(one.serial, one.serial),
                file=self._compared.file_of(one.stream, one.serial),
            )

    def _report_missing(self, missing: Sequence[tuple[int, int]], holes: Sequence[_Hole]) -> None:
        """Report missing serials, with their writers if known from other facts."""
        for hole in holes:
            runs = [
                (max(first, hole.after + 1), min(last, hole.before - 1))
                for first, last in missing
                if first < hole.before and last > hole.after
            ]
            if not runs:
                self._report_chain(hole.stream, hole.writer, hole.before, hole.upto, hole.upto, hole.token)
                continue
            self._found.add(
                "missing-row",
                f"facts of {hole.writer} with tokens after {hole.token}, up to {hole.upto}, are missing",
                stream=hole.stream,
                writer=hole.writer,
                tokens=(hole.token + 1, hole.upto),
                serials=(runs[0][0], runs[-1][1]),
                file=self._compared.file_of(hole.stream, runs[0][0]),
            )
        for first, last in missing:
            batch = next(
                (m for m in self._compared.manifests if m.first_serial <= first <= m.last_serial), None
            )
            is_told = any(first < hole.before and last > hole.after for hole in holes)
            if is_told or batch is None or self._compared.unknown.get(batch.batch):
                continue
            short = self._compared.short.get(batch.batch, [])
            which = short[0] if len(short) == 1 else None
            self._found.add(
                "missing-row",
                f"serial {first} is missing" if first == last else f"serials {first} to {last} are missing",
                stream=which.stream if which else "",
                serials=(first, last),
                file=which.path if which else "",
            )

    def _report_unexplained(self, chosen: Sequence[Manifest]) -> None:
        """Report counts and clocks that differ although all rows are right: the manifest is wrong."""
        wrong = {one.first_serial for one in self._found.listed() if one.severity == "error"}
        for manifest in chosen:
            serials = (manifest.first_serial, manifest.last_serial)
            if any(serial is not None and serials[0] <= serial <= serials[1] for serial in wrong):
                continue
            for file in self._compared.short.get(manifest.batch, []):
                seen = self._compared.seen[file.path]
                why = f"{manifest.name} says that {file.path} has {file.rows} rows of {file.facts} facts"
                why += f" from serial {file.first_serial} to {file.last_serial};"
                why += f" it has {seen.rows} of {seen.facts} from {seen.first} to {seen.last}"
                self._found.add("manifest", why, stream=file.stream, serials=serials, file=file.path)
            for stream in sorted(stream for batch, stream in self._compared.ahead if batch == manifest.batch):
                why = f"{manifest.name} has another clock of {stream} than its rows"
                self._found.add("manifest", why, stream=stream, serials=serials, file=manifest.name)

    def _report_chain(
        self, stream: str, writer: str, serial: int, prev_token: int, token: int, expected: int
    ) -> None:
        why = f"{writer} continues at token {prev_token}, expected {expected}"
        self._found.add(
            "broken-chain",
            why,
            stream=stream,
            writer=writer,
            tokens=(min(prev_token, expected), max(token, expected)),
            serials=(serial, serial),
            file=self._compared.file_of(stream, serial),
        )


def _spans(manifests: Sequence[Manifest]) -> list[windows.SerialSpan]:
    """Return the spans of serials; adjacent batches are joined."""
    spans: list[windows.SerialSpan] = []
    for manifest in manifests:
        if spans and spans[-1].last + 1 == manifest.first_serial:
            spans[-1] = windows.SerialSpan(spans[-1].first, manifest.last_serial, spans[-1].digest)
        else:
            spans.append(
                windows.SerialSpan(manifest.first_serial, manifest.last_serial, manifest.start_digest)
            )
    return spans
