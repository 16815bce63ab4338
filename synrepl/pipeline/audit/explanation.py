"""Explanation of suspicious spans: the affected rows and writers, without false alarms."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from synrepl.pipeline.audit import windows
from synrepl.pipeline.audit.comparison import AuditSpan, Comparison, TokenGap
from synrepl.pipeline.audit.file_scan import read_files
from synrepl.pipeline.audit.findings import AuditFindings, ChainBreak
from synrepl.pipeline.jobs import Progress, ignore_progress

__all__ = ["Explanation"]


class Explanation:
    """Reader of suspicious rows, which reports the problems in them."""

    def __init__(self, spark: SparkSession, compared: Comparison, found: AuditFindings) -> None:
        self._spark = spark
        self._compared = compared
        self._found = found

    def explain(self, progress: Progress = ignore_progress) -> list[ChainBreak]:
        """Examine the suspicious spans. Returns the breaks of chains there, also those with a known cause."""
        spans = self._compared.spans
        if not spans:
            return []
        chosen = pa.concat_tables([self._compared.readable(one.first, one.last) for one in spans])
        total = pc.sum(chosen["rows"]).as_py() or 0
        progress("rows", 0, total)
        wrong: list[Any] = []
        missing: list[tuple[int, int]] = []
        breaks: list[Any] = []
        if len(chosen):
            store, changed = self._compared.table.store, self._compared.changed
            # A compacted span has holes, so its serials are not checked, but its facts are.
            dense = _join([one for one in spans if not one.is_compacted])
            wrong, missing = windows.check_serials(read_files(self._spark, store, chosen, changed), dense)
            # The missing serials explain a broken chain.
            broken = {stream for one in spans for stream in one.broken}
            if any(one.is_uneven for one in spans):
                broken |= set(pc.unique(chosen["stream"]).to_pylist())
            of_broken = chosen.filter(pc.is_in(chosen["stream"], pa.array(sorted(broken), pa.string())))
            breaks = windows.find_breaks(read_files(self._spark, store, of_broken, changed))
        self._report_wrong(wrong)
        broken_chains, holes = self._follow(breaks, spans)
        self._report_missing(missing, [*holes, *self._compared.tails])
        self._report_unexplained(spans)
        progress("rows", total, total)
        return broken_chains

    def _follow(
        self, breaks: Iterable[Any], spans: Sequence[AuditSpan]
    ) -> tuple[list[ChainBreak], list[TokenGap]]:
        """Return the breaks and the holes of writers. Tokens that go back are reported directly."""
        found, holes = [], []
        for one in breaks:
            span = next(span for span in spans if span.first <= one.serial <= span.last)
            is_known = one.before_serial is not None and one.before_serial >= span.first
            if is_known:
                after, token = one.before_serial, one.before_token
            else:
                after = span.start.serials.get((one.stream, one.writer), 0)
                known = span.start.token(one.stream, one.writer)
                token = one.prev_token if known is None else known
            kind = self._kind(one, token)
            is_excused = self._is_excused(one, span, token, is_known=is_known)
            if one.prev_token == token or (is_excused and kind != "epoch_start"):
                continue
            fields = {name: getattr(one, name) for name in windows.FIELDS}
            found.append(ChainBreak(**fields, expected=token, kind=kind))
            if is_excused:
                continue
            gap = TokenGap(one.stream, one.writer, token, one.prev_token, after, one.serial)
            if one.prev_token > token:
                holes.append(gap)
            else:
                self._report_chain(gap, one.token)
        return found, holes

    def _kind(self, one: Any, token: int) -> str:
        for start in self._compared.table.end.epoch_starts:
            if (one.before_epoch or 0) < start.epoch <= one.epoch and start.stream in {"", one.stream}:
                return "epoch_start"
        return "missing" if one.prev_token > token else "again"

    def _is_excused(self, one: Any, span: AuditSpan, token: int, *, is_known: bool) -> bool:
        """Whether a break has a legitimate cause."""
        if one.stream in span.unknown:
            return True
        if span.is_compacted:
            return bool(one.prev_token > token)
        # After a loss of facts, a writer continues at an earlier position, which no clock has.
        crossed = not is_known or one.before_epoch != one.epoch
        if one.stream in self._compared.void and crossed and one.prev_token < token:
            return True
        # The clock lacks the positions of trimmed facts.
        is_trimmed = self._compared.table.end.compacted_upto > 0
        return bool(is_trimmed and not is_known and one.prev_token > token)

    def _report_wrong(self, wrong: Sequence[Any]) -> None:
        reported = self._compared.reported
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
            sentence, file = why[one.what].format(one.serial), self._compared.file_of(one.stream, one.serial)
            tokens, serials = (one.token, one.token), (one.serial, one.serial)
            self._found.add(one.what, sentence, one.stream, one.writer, tokens, serials, file)

    def _report_missing(self, missing: Sequence[tuple[int, int]], holes: Sequence[TokenGap]) -> None:
        """Report missing serials, with their writers if known from other facts."""
        end = self._compared.table.end.last_serial
        for hole in holes:
            runs = [
                (max(first, hole.after + 1), min(last, hole.before - 1))
                for first, last in missing
                if first < hole.before and last > hole.after
            ]
            if not runs and hole.before > end:
                why = f"the log has {hole.writer} at token {hole.upto}, its last fact is at token"
                why += f" {hole.token}"
                self._found.add("table", why, hole.stream, hole.writer, serials=(end, end))
                continue
            if not runs:
                self._report_chain(hole, hole.upto)
                continue
            tokens = (hole.token + 1, hole.upto)
            why = f"facts of {hole.writer} with tokens after {hole.token}, up to {hole.upto}, are missing"
            serials, file = (runs[0][0], runs[-1][1]), self._compared.file_of(hole.stream, runs[0][0])
            self._found.add("missing-row", why, hole.stream, hole.writer, tokens, serials, file)
        for first, last in missing:
            span = next((one for one in self._compared.spans if one.first <= first <= one.last), None)
            is_told = any(first < hole.before and last > hole.after for hole in holes)
            if is_told or span is None or span.unknown:
                continue
            which = span.short[0].file if len(span.short) == 1 else None
            stream, file = (which.stream, which.path) if which else ("", "")
            why = f"serial {first} is missing" if first == last else f"serials {first} to {last} are missing"
            self._found.add("missing-row", why, stream, serials=(first, last), file=file)

    def _report_unexplained(self, spans: Iterable[AuditSpan]) -> None:
        """Report counts that differ although all rows are right: the log is wrong."""
        wrong = {one.first_serial for one in self._found.listed() if one.severity == "error"}
        for span in spans:
            if any(serial is not None and span.first <= serial <= span.last for serial in wrong):
                continue
            for scan in span.short:
                file = scan.file
                why = f"the log says that {file.path} has {file.rows} rows, serials {file.first_serial} to"
                why += f" {file.last_serial}; it has {scan.rows}, serials {scan.first} to {scan.last}"
                serials = (file.first_serial, file.last_serial)
                self._found.add("table", why, file.stream, serials=serials, file=file.path)

    def _report_chain(self, gap: TokenGap, last: int) -> None:
        """Report a break of a chain, by a fact that ends at the token `last`."""
        why = f"{gap.writer} continues at token {gap.upto}, expected {gap.token}"
        tokens = (min(gap.token, gap.upto), max(gap.token, last))
        serials, file = (gap.before, gap.before), self._compared.file_of(gap.stream, gap.before)
        self._found.add("broken-chain", why, gap.stream, gap.writer, tokens, serials, file)


def _join(spans: Iterable[AuditSpan]) -> list[windows.SerialSpan]:
    """Return the serials of these spans; adjacent ones are joined."""
    joined: list[windows.SerialSpan] = []
    for span in spans:
        if joined and joined[-1][1] + 1 == span.first:
            joined[-1] = (joined[-1][0], span.last, joined[-1][2])
        else:
            joined.append((span.first, span.last, span.digest))
    return joined
