"""Verdict on an archive: findings for operators, the worst first."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from synrepl.html.humanize import at, counted, printable, span
from synrepl.pipeline.audit.audit_findings import CODES, ChainBreak
from synrepl.pipeline.report.counts import WriterLag
from synrepl.pipeline.report.measurement import Coverage, DaemonStatus, Measurements, lag_seconds

KINDS: Final = ("bad", "busy", "good", "dim")
"""The kinds, the worst first: missing or wrong facts; needs attention; good; information."""

WAIT_SECONDS: Final = 3600.0
"""An archive lag above this is reported."""

CHAIN_CODES: Final = frozenset({"broken-chain", "doubled-row", "gap", "lost-fact", "missing-row"})
"""The codes of an audit for gaps, repeated tokens and duplicates, for which `_chain` has other texts."""

SILENT_SECONDS: Final = 3600.0
"""A writer that is silent for longer, and behind other writers of its stream, is reported."""


class Advice(msgspec.Struct, frozen=True):
    """A finding. `where` is the section of the page with the details."""

    kind: str
    text: str
    more: str = ""
    where: str = ""


def findings(measured: Measurements) -> list[Advice]:
    """Return all findings, the worst first; none for an archive without facts."""
    covers = measured.covers
    if covers is None:
        return []
    found = [
        *_chain(measured, covers),
        *_silent(measured.lags),
        *_lag(measured),
        *_epoch_starts(measured, covers),
        *(_daemon(measured.daemon) if measured.daemon is not None else ()),
        *_caches(measured),
    ]
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def _chain(measured: Measurements, covers: Coverage) -> Iterable[Advice]:
    missing = [one for one in measured.broken if one.kind == "missing"]
    lost = [one for one in measured.broken if one.kind == "lost"]
    again = [one for one in measured.broken if one.kind == "again"]
    copied, count = measured.total("copied"), measured.total("facts")
    # A fact without rows has a line too.
    lines = measured.total("rows") + measured.total("empty")
    if missing:
        why = f"{_where(missing)}: a fact does not continue the previous one of its writer"
        yield Advice("bad", f"{counted(len(missing), 'gap')}: facts are missing", why, "gaps")
    if lost:
        why = f"{_where(lost)}: the log could not get them, and says so; the archive has all that the log has"
        yield Advice("bad", f"{counted(len(lost), 'gap')}: facts were lost at the source", why, "gaps")
    if again:
        why = f"{_where(again)}: a fact continues from a token below that of the previous one of its writer"
        yield Advice("bad", f"Tokens were repeated {counted(len(again), 'time')}", why, "gaps")
    if copied:
        yield Advice("bad", f"{counted(copied, 'fact')} duplicated", "counted once in this report", "gaps")
    if count != covers.facts or (lines != covers.lines and not copied):
        is_equal = count == covers.facts
        have, want, unit = (lines, covers.lines, "line") if is_equal else (count, covers.facts, "fact")
        text = f"The files have {counted(have, unit)}, but the log of the table counts {want:,}"
        why = "run synrepl pipeline audit: files were changed, or belong to another archive"
        yield Advice("bad", text, why, "gaps")
    problems = [one for one in measured.problems if one.what not in CHAIN_CODES]
    for what in dict.fromkeys(one.what for one in problems):
        same = [one for one in problems if one.what == what]
        text = f"{counted(len(same), 'finding')} of the audit: {CODES[what]}"
        yield Advice("bad", text, printable(same[0].sentence), "gaps")
    if not (missing or lost or again or copied or measured.problems) and count == covers.facts:
        beyond = "" if not covers.last.compacted_upto else f" after serial {covers.last.compacted_upto:,}"
        why = f"every fact{beyond} continues the previous one of its writer"
        first, last = max(covers.first_serial, covers.last.compacted_upto + 1), covers.last.last_serial
        if first <= last:
            yield Advice("good", f"Nothing is missing from serial {first:,} to {last:,}", why, "gaps")
    if late := measured.total("late"):
        yield Advice("dim", f"{counted(late, 'fact')} came late", "after later facts of their writer", "gaps")


def _epoch_starts(measured: Measurements, covers: Coverage) -> Iterable[Advice]:
    words = {"promoted": "a daemon was promoted", "restored": "the log was restored"}
    for epoch_start in covers.last.epoch_starts:
        if epoch_start.why == "lost":
            void = measured.voided.get(epoch_start.epoch, 0)
            of = f" of {printable(epoch_start.stream)}" if epoch_start.stream else ""
            text = f"Epoch {epoch_start.epoch}: facts{of} were lost at the source"
            why = f"{counted(void, 'fact')} of earlier epochs {'is' if void == 1 else 'are'} discarded"
            yield Advice("bad", text, f"{at(epoch_start.at_ms)}; {why}", "gaps")
        elif epoch_start.serial >= covers.first_serial - 1:
            text = f"Epoch {epoch_start.epoch}: {words.get(epoch_start.why, printable(epoch_start.why))}"
            why = f"{at(epoch_start.at_ms)}, after serial {epoch_start.serial:,}"
            yield Advice("busy", text, why, "gaps")
    if covers.last.compacted_upto:
        text = f"Up to serial {covers.last.compacted_upto:,} only facts that were not replaced are archived"
        yield Advice("dim", text, "the log was trimmed before it was archived", "covers")


def _lag(measured: Measurements) -> Iterable[Advice]:
    lags = [(lag_seconds(batch), batch.version) for batch in measured.batches]
    if slow := [lag for lag in lags if lag[0] > WAIT_SECONDS]:
        most, version = max(slow)
        batches = counted(len(lags), "batch", "batches")
        why = f"batch {version}; the lag of {len(slow):,} of {batches} was above {span(WAIT_SECONDS)}"
        yield Advice("busy", f"The archive lag was up to {span(most)}", why, "lag")
    least, _ = min(lags, default=(0.0, 0))
    if least < -1:
        why = f"by at least {span(-least)}: the lags in this report are too short"
        yield Advice("busy", "The clocks of the daemon and of the archive differ", why, "lag")


def _silent(lags: Sequence[WriterLag]) -> Iterable[Advice]:
    silent: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for one in lags:
        if (seconds := one.silent[-1] or 0.0) > SILENT_SECONDS and (tokens := one.behind[-1] or 0) > 0:
            silent[one.writer].append((seconds, tokens, printable(one.stream)))
    order = sorted(silent.items(), key=lambda found: -max(seconds for seconds, *_ in found[1]))
    for writer, found in order[:3]:
        least = span(min(seconds for seconds, *_ in found))
        behind = " and ".join(f"{counted(n, 'token')} behind on {stream}" for _, n, stream in found[:3])
        text = f"{printable(writer)} has been silent for {least}"
        yield Advice("busy", text, f"other writers continue: this writer is {behind}", "lag")
    if len(order) > 3:
        yield Advice("busy", f"{len(order) - 3} more writers are silent", "", "lag")


def _daemon(daemon: DaemonStatus) -> Iterable[Advice]:
    if daemon.trouble:
        text = "The status of the daemon is unavailable"
        yield Advice("busy", text, f"{daemon.url}: {daemon.trouble}", "leases")
        return
    if lost := daemon.gaps.get("synrepl_gaps_lost_total", 0):
        text = f"The daemon has {counted(lost, 'unrecoverable gap')}"
        yield Advice("bad", text, "no source has the missing facts", "leases")
    for error in daemon.status.get("errors") or ():
        what = error.get("what", error) if isinstance(error, dict) else error
        yield Advice("bad", f"The daemon reports: {printable(str(what))}", "", "leases")
    ended = [one for one in daemon.leases if one.get("ended") is not None]
    for one in ended[:3]:
        name = printable(str(one.get("name") or one.get("uuid")))
        yield Advice("busy", f"The lease of {name} ended", printable(str(one.get("reason", ""))), "leases")


def _caches(measured: Measurements) -> Iterable[Advice]:
    if measured.invalidations is None:
        return
    if misshapen := measured.invalidations.total("misshapen"):
        text = f"{counted(misshapen, 'row')} of the stream caches with unexpected keys"
        yield Advice("busy", text, "for each, workers empty every cache that its alias stands for", "caches")
    if unreadable := measured.invalidations.total("unreadable"):
        many = counted(unreadable, "row or key", "rows or keys")
        yield Advice("busy", f"{many} of the stream caches cannot be read", "", "caches")


def _where(broken: Sequence[ChainBreak]) -> str:
    writers = sorted({f"{printable(one.stream)} of {printable(one.writer)}" for one in broken})
    more = f" and {len(writers) - 3} more" if len(writers) > 3 else ""
    return ", ".join(writers[:3]) + more
