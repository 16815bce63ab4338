"""Verdict on an archive: findings for operators, the worst first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from synrepl.html.humanize import at, counted, printable, span
from synrepl.pipeline.archive.manifest import Arrival
from synrepl.pipeline.report.chains import ChainBreak
from synrepl.pipeline.report.counts import WriterLag
from synrepl.pipeline.report.daemon_status import DaemonStatus
from synrepl.pipeline.report.measurement import Coverage

__all__ = ["KINDS", "Advice", "findings"]

KINDS: Final = ("bad", "busy", "good", "dim")
"""The kinds, the worst first: missing or wrong facts; needs attention; good; information."""

WAIT_SECONDS: Final = 3600.0
"""An archive lag above this is reported."""

SILENT_SECONDS: Final = 3600.0
"""A writer that is silent for longer, while others of its stream are not, is reported."""


class Advice(msgspec.Struct, frozen=True):
    """A finding. `where` is the section of the page with the details."""

    kind: str
    text: str
    more: str = ""
    where: str = ""


def findings(
    *,
    covers: Coverage,
    totals: Sequence[Mapping[str, Any]],
    counted_facts: int,
    counted_lines: int,
    broken: Sequence[ChainBreak],
    voided: Mapping[int, int],
    arrivals: Sequence[Arrival],
    standing: Sequence[WriterLag],
    daemon: DaemonStatus | None,
    unreadable: int,
    misshapen: int,
) -> list[Advice]:
    """Return all findings."""
    found = [
        *_chain(covers, totals, broken, counted_facts, counted_lines),
        *_lost(covers, voided),
        *_silent(standing),
        *_lag(arrivals),
        *_turns(covers),
        *(_daemon(daemon) if daemon is not None else ()),
        *_caches(unreadable, misshapen),
    ]
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def _chain(
    covers: Coverage,
    totals: Sequence[Mapping[str, Any]],
    broken: Sequence[ChainBreak],
    counted_facts: int,
    counted_lines: int,
) -> Iterable[Advice]:
    missing = [one for one in broken if one.kind == "missing"]
    again = [one for one in broken if one.kind == "again"]
    copied = sum(row["copied"] for row in totals)
    if missing:
        yield Advice(
            "bad",
            f"Facts are missing in {counted(len(missing), 'place')}",
            f"{_where(missing)}: a fact does not continue the previous one",
            "gaps",
        )
    if again:
        yield Advice(
            "bad",
            f"Writers went back in {counted(len(again), 'place')}",
            f"{_where(again)}: tokens were repeated",
            "gaps",
        )
    if copied:
        yield Advice("bad", f"{counted(copied, 'fact')} duplicated", "count them once", "gaps")
    if counted_facts != covers.facts or (counted_lines != covers.lines and not copied):
        yield Advice(
            "bad",
            f"The files have {counted(counted_facts, 'fact')}, the manifests say {covers.facts:,}",
            "run synrepl pipeline audit: files were changed, or belong to another archive",
            "gaps",
        )
    if not (missing or again or copied) and counted_facts == covers.facts:
        yield Advice(
            "good",
            f"Nothing is missing from serial {covers.first_serial:,} to {covers.last_serial:,}",
            "every fact continues the previous one of its writer"
            if covers.compacted is None
            else f"every fact beyond serial {covers.compacted:,} continues the previous one of its writer",
            "gaps",
        )
    late = sum(row["late"] for row in totals)
    if late:
        yield Advice("dim", f"{counted(late, 'fact')} came late", "after later facts of their writer", "gaps")


def _lost(covers: Coverage, voided: Mapping[int, int]) -> Iterable[Advice]:
    for epoch_start in covers.epoch_starts:
        if epoch_start.why == "lost":
            void = voided.get(epoch_start.epoch, 0)
            of = f" of {printable(epoch_start.stream)}" if epoch_start.stream else ""
            yield Advice(
                "bad",
                f"Epoch {epoch_start.epoch}: facts{of} were lost at the source",
                f"{at(epoch_start.at_ms)}; "
                f"{counted(void, 'fact')} of before {'is' if void == 1 else 'are'} void",
                "gaps",
            )


def _turns(covers: Coverage) -> Iterable[Advice]:
    words = {"promoted": "another daemon took over", "restored": "the log was restored"}
    for epoch_start in covers.epoch_starts:
        if epoch_start.why != "lost" and epoch_start.serial >= covers.first_serial - 1:
            text = f"Epoch {epoch_start.epoch}: {words.get(epoch_start.why, printable(epoch_start.why))}"
            yield Advice(
                "busy", text, f"{at(epoch_start.at_ms)}, after serial {epoch_start.serial:,}", "gaps"
            )
    if covers.compacted is not None:
        yield Advice(
            "dim",
            f"Up to serial {covers.compacted:,} only facts that were not replaced are archived",
            "the log was trimmed before the first archive",
            "covers",
        )


def _lag(arrivals: Sequence[Arrival]) -> Iterable[Advice]:
    slow = [one for one in arrivals if one.seconds > WAIT_SECONDS]
    if slow:
        worst = max(slow, key=lambda one: one.seconds)
        yield Advice(
            "busy",
            f"The archive was up to {span(worst.seconds)} behind",
            f"at batch {worst.batch}; {len(slow):,} of {counted(len(arrivals), 'batch', 'batches')} came more"
            f" than {span(WAIT_SECONDS)} after their last fact",
            "lag",
        )
    early = min((one.seconds for one in arrivals), default=0.0)
    if early < -1:
        yield Advice(
            "busy",
            "The clocks of the daemon and of the archive differ",
            f"by {span(-early)} or more: lags are shown too short",
            "lag",
        )


def _silent(standing: Sequence[WriterLag]) -> Iterable[Advice]:
    ended: dict[str, list[WriterLag]] = {}
    for one in standing:
        if one.silent and (one.silent[-1] or 0.0) > SILENT_SECONDS and (one.behind[-1] or 0) > 0:
            ended.setdefault(one.writer, []).append(one)
    order = sorted(ended.items(), key=lambda found: -max(one.silent[-1] or 0.0 for one in found[1]))
    for writer, found in order[:3]:
        least = span(min(one.silent[-1] or 0.0 for one in found))
        where = " and ".join(
            f"{counted(one.behind[-1] or 0, 'token')} behind on {printable(one.stream)}" for one in found[:3]
        )
        text = f"{printable(writer)} has been silent for {least}"
        yield Advice("busy", text, f"others continue: the writer is {where}", "lag")
    if len(order) > 3:
        yield Advice("busy", f"{len(order) - 3} more writers are silent", "", "lag")


def _daemon(daemon: DaemonStatus) -> Iterable[Advice]:
    if daemon.trouble:
        yield Advice("busy", "The daemon was not queried", f"{daemon.url}: {daemon.trouble}", "leases")
        return
    lost = daemon.gaps.get("synrepl_gaps_lost_total", 0)
    if lost:
        yield Advice(
            "bad",
            f"The daemon gave up {counted(lost, 'gap')}",
            "the missing facts are unrecoverable",
            "leases",
        )
    for error in daemon.status.get("errors") or ():
        what = error.get("what", error) if isinstance(error, dict) else error
        yield Advice("bad", f"The daemon says: {printable(str(what))}", "", "leases")
    ended = [one for one in daemon.leases if one.get("ended") is not None]
    for one in ended[:3]:
        name = printable(str(one.get("name") or one.get("uuid")))
        yield Advice("busy", f"The lease of {name} ended", printable(str(one.get("reason", ""))), "leases")


def _caches(unreadable: int, misshapen: int) -> Iterable[Advice]:
    if misshapen:
        yield Advice(
            "busy",
            f"{counted(misshapen, 'row')} of caches with unexpected keys",
            "workers invalidate all caches of the name",
            "caches",
        )
    if unreadable:
        many = counted(unreadable, "row or key", "rows or keys")
        yield Advice("busy", f"{many} of caches cannot be read", "", "caches")


def _where(broken: Sequence[ChainBreak]) -> str:
    places = sorted({f"{printable(one.stream)} of {printable(one.writer)}" for one in broken})
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return ", ".join(places[:3]) + more
