"""Explanation of suspicious ranges of serials (`AuditSpan`): affected rows and writers. Expensive.

The ranges are cut into pieces, one for each task. A piece has the last fact before it too, so that the digest
of its first fact can be computed; chains of tokens are continued from piece to piece by the driver.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.audit.archive_comparison import AuditSpan, Comparison
from synrepl.pipeline.audit.audit_findings import ChainBreak
from synrepl.pipeline.audit.file_scan import lost_facts
from synrepl.pipeline.driver import TASK, Driver
from synrepl.pipeline.jobs import Progress, ignore_progress
from synrepl.pipeline.source.rows import ROWS
from synrepl.streams.digest import chain

PIECE: Final = 128 * 1024
"""Serials that a task examines, with the rows of their facts in memory."""

AT_MOST: Final = 10_000

FACT: Final = ("serial", "epoch", "stream", "writer", "prev_token", "token", "committed_at", "digest")

PIECES: Final = pa.schema([(TASK, pa.int32()), *(ROWS.field(name) for name in (*FACT, "seq", "row"))])
"""The rows of the facts of a piece, and of the fact before it, if that is adjacent."""

EXAMINED: Final = pa.schema([pa.field("examined", pa.binary(), nullable=False)])
"""The results of tasks: `Examined` as JSON."""

WRONG: Final = {
    "doubled-row": "serial {} or one of its rows is duplicated",
    "missing-row": "a row of serial {} is missing",
    "changed-row": "serial {} does not match its digest: the fact or the digest was changed",
}


class WrongFact(msgspec.Struct, frozen=True):
    """A fact of which something is wrong; `what` is a code of findings."""

    what: str
    serial: int
    stream: str
    writer: str
    token: int


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that moves the position of its writer, and the previous one (None: none is known).

    Where `prev_token` is the token, it says that the facts after the previous one are lost.
    """

    stream: str
    writer: str
    serial: int
    epoch: int
    prev_token: int
    token: int
    committed_ms: int
    before_serial: int | None = None
    before_token: int | None = None
    before_epoch: int | None = None

    @property
    def is_break(self) -> bool:
        """Whether it does not continue the previous fact. The first existing row of a fact counts."""
        if self.before_serial is None:
            return True
        return self.prev_token != self.before_token and self.serial != self.before_serial

    def after(self, before: "Move | None") -> "Move":
        """Return this fact with a fact of the piece before as its previous one."""
        if before is None:
            return self
        return msgspec.structs.replace(
            self, before_serial=before.serial, before_token=before.token, before_epoch=before.epoch
        )


class Examined(msgspec.Struct, kw_only=True):
    """What a task found in the piece with this number.

    `serials` are the first and last ones of each run of existing serials. Of each writer, `moves` has the
    first move and those that do not continue the previous one, and `last` the last move.
    """

    piece: int
    wrong: list[WrongFact]
    serials: list[tuple[int, int]]
    moves: list[Move]
    last: list[Move]


def explain(driver: Driver, compared: Comparison, progress: Progress = ignore_progress) -> list[ChainBreak]:
    """Report the problems in the suspicious ranges of serials.

    Returns the `ChainBreak`s found, including those explained by a new epoch, without those explained by
    compaction, trimming, lost facts or an unreadable file.
    """
    spans = compared.spans
    if not spans:
        return []
    files = compared.readable_of((one.first, one.last) for one in spans)
    total = pc.sum(files["rows"]).as_py() or 0
    progress("rows", 0, total)
    breaks: list[ChainBreak] = []
    holes: list[ChainBreak] = []
    missing: list[tuple[int, int]] = []
    if len(files):
        # Broken chains of other streams are those of facts that are not suspicious.
        broken = {stream for one in spans for stream in one.broken}
        if any(one.is_uneven for one in spans):
            broken |= set(pc.unique(files["stream"]).to_pylist())
        pieces = _cut(spans)
        rows = compared.map(driver, files, partial(_spread, pieces), PIECES).repartition(len(pieces))
        known = {one.first: one.digest for one in spans if not one.is_compacted}
        found = rows.map(partial(_examine, pieces, known, broken), EXAMINED).collect()["examined"]
        examined = [msgspec.json.decode(one.as_buffer(), type=Examined) for one in found]
        examined.sort(key=lambda one: one.piece)
        # A compacted span has holes, so its serials are not checked, but its facts are.
        missing = _missing(examined, _join([one for one in spans if not one.is_compacted]))
        # The missing serials explain a broken chain.
        _report_wrong(compared, [wrong for one in examined for wrong in one.wrong][:AT_MOST])
        breaks, holes = _follow(compared, _find_breaks(examined))
    _report_missing(compared, missing, [*holes, *compared.tails])
    _report_unexplained(compared)
    progress("rows", total, total)
    return breaks


def _cut(spans: Iterable[AuditSpan]) -> list[tuple[int, int]]:
    """Return the first and the last serials of the pieces of these spans."""
    return [
        (first, min(first + PIECE - 1, span.last))
        for span in spans
        for first in range(span.first, span.last + 1, PIECE)
    ]


def _spread(pieces: Sequence[tuple[int, int]], batches: Iterable[Any]) -> Iterator[Any]:
    """Yield rows with the numbers of their pieces (`PIECES`)."""
    firsts = np.array([first for first, _ in pieces], np.int64)
    lasts = {last for (_, last), (first, _) in pairwise(pieces) if first == last + 1}
    ends = pa.array(sorted(lasts), pa.int64())
    for batch in batches:
        if not len(batch):
            continue
        numbers = np.maximum(np.searchsorted(firsts, batch["serial"].to_numpy(), "right") - 1, 0)
        columns = [batch[name] for name in PIECES.names[1:]]
        rows = pa.record_batch([pa.array(numbers.astype(np.int32)), *columns], PIECES)
        yield rows
        # The last fact of a piece is also in the next one, as the predecessor of its first fact.
        guests = rows.filter(pc.is_in(rows["serial"], ends))
        yield guests.set_column(0, PIECES.field(0), pc.add(guests[TASK], pa.scalar(1, pa.int32())))


def _examine(
    pieces: Sequence[tuple[int, int]],
    known: Mapping[int, str],
    broken: AbstractSet[str],
    batches: Iterable[Any],
) -> Iterator[Any]:
    """Examine the facts of pieces. `known` are digests before serials; chains of `broken` are followed."""
    rows = pa.Table.from_batches(batches, PIECES)
    for number in pc.unique(rows[TASK]).to_pylist():
        first, _ = pieces[number]
        its = rows.filter(pc.equal(rows[TASK], number)).sort_by(
            [("serial", "ascending"), ("seq", "ascending")]
        )
        examined = Examined(piece=number, wrong=[], serials=[], moves=[], last=[])
        _examine_facts(examined, its, first, known)
        _follow_writers(examined, its.filter(pc.greater_equal(its["serial"], first)), broken)
        yield pa.record_batch([pa.array([msgspec.json.encode(examined)], pa.binary())], EXAMINED)


def _examine_facts(examined: Examined, rows: Any, first: int, known: Mapping[int, str]) -> None:
    """Compute the digest of each fact whose predecessor is known, and find the runs of serials."""
    starts = _starts(rows, ["serial"])
    if len(_starts(rows, FACT)) > len(starts):
        # Different facts under one serial.
        rows = rows.sort_by([(name, "ascending") for name in (*FACT, "seq")])
        starts = _starts(rows, FACT)
    counts = np.diff(np.append(starts, len(rows)))
    tops = np.maximum.reduceat(rows["seq"].to_numpy(), starts)
    facts = rows.select(FACT).take(pa.array(starts))
    texts = rows["row"].to_pylist()
    milliseconds = facts["committed_at"].cast(pa.int64()).to_numpy() // 1000
    columns = [facts[name].to_pylist() for name in FACT if name != "committed_at"]
    before, before_digest = None, ""
    for at, (serial, epoch, stream, writer, prev_token, token, digest) in enumerate(
        zip(*columns, strict=True)
    ):
        start, copies, top = starts[at], int(counts[at]), int(tops[at])
        if serial >= first:
            what = ""
            previous = before_digest if before == serial - 1 else known.get(serial, "")
            if copies > top + 1 or before == serial:
                what = "doubled-row"
            elif copies < top + 1:
                what = "missing-row"
            elif previous:
                given = ",".join(text for text in texts[start : start + copies] if text is not None)
                computed = chain(
                    previous,
                    serial=serial,
                    epoch=epoch,
                    stream=stream,
                    writer=writer,
                    prev_token=prev_token,
                    token=token,
                    committed_at_ms=int(milliseconds[at]),
                    rows=f"[{given}]".encode(),
                )
                what = "" if computed == digest else "changed-row"
            if what and len(examined.wrong) < AT_MOST:
                examined.wrong.append(WrongFact(what, serial, stream, writer, token))
        before, before_digest = serial, digest
    serials = np.unique(facts["serial"].to_numpy())
    serials = serials[serials >= first]
    for run in np.split(serials, np.flatnonzero(np.diff(serials) > 1) + 1):
        if len(run):
            examined.serials.append((int(run[0]), int(run[-1])))


def _starts(rows: Any, names: Iterable[str]) -> Any:
    """Return where rows begin that differ from the previous row in one of these columns."""
    is_other = np.ones(min(1, len(rows)), bool)
    if len(rows) > 1:
        differences = [
            pc.not_equal(rows[name].slice(1), rows[name].slice(0, len(rows) - 1)).to_numpy() for name in names
        ]
        is_other = np.concatenate((is_other, np.logical_or.reduce(differences)))
    return np.flatnonzero(is_other)


def _follow_writers(examined: Examined, rows: Any, broken: AbstractSet[str]) -> None:
    """Find the facts that do not continue the previous one of their writer. Late facts are ignored."""
    is_broken = pc.is_in(rows["stream"], pa.array(sorted(broken), pa.string()))
    moves = pc.not_equal(rows["prev_token"], rows["token"]).to_numpy() | lost_facts(rows)
    rows = rows.filter(pc.and_(is_broken, pa.array(moves)))
    order = [(name, "ascending") for name in ("stream", "writer", "serial", "seq")]
    rows = rows.sort_by(order)
    if not len(rows):
        return
    begins = np.zeros(len(rows), bool)
    begins[_starts(rows, ["stream", "writer"])] = True
    tokens, prev_tokens, serials = (rows[name].to_numpy() for name in ("token", "prev_token", "serial"))
    is_break = begins.copy()
    is_break[1:] |= (prev_tokens[1:] != tokens[:-1]) & (serials[1:] != serials[:-1])
    ends = np.append(np.flatnonzero(begins)[1:], len(rows)) - 1
    examined.last = _moves(rows, ends.tolist(), begins)
    examined.moves = _moves(rows, np.flatnonzero(is_break).tolist(), begins)


def _moves(rows: Any, places: Sequence[int], begins: Any) -> list[Move]:
    """Return the moves at these places. Those that begin a writer have no previous one."""
    found = []
    for at in places:
        (one,) = rows.slice(at, 1).to_pylist()
        fields = {name: one[name] for name in ("stream", "writer", "serial", "epoch", "prev_token", "token")}
        (committed,) = rows["committed_at"].slice(at, 1).cast(pa.int64()).to_pylist()
        move = Move(**fields, committed_ms=committed // 1000)
        if not begins[at]:
            (before,) = rows.select(["serial", "token", "epoch"]).slice(at - 1, 1).to_pylist()
            move = msgspec.structs.replace(
                move, **{f"before_{name}": value for name, value in before.items()}
            )
        found.append(move)
    return found


def _missing(examined: Sequence[Examined], spans: Sequence[AuditSpan]) -> list[tuple[int, int]]:
    """Return the missing runs of serials, from the existing runs."""
    runs = [run for one in examined for run in one.serials]
    missing = []
    for span in spans:
        expected = span.first
        for first, last in runs:
            if span.first <= first <= span.last:
                if first > expected:
                    missing.append((expected, first - 1))
                expected = last + 1
        if expected <= span.last:
            missing.append((expected, span.last))
    return missing


def _find_breaks(examined: Sequence[Examined]) -> list[Move]:
    """Return facts that do not continue the previous one of their writer, and the first of each writer."""
    last: dict[tuple[str, str], Move] = {}
    found: list[Move] = []
    for one in examined:
        for move in one.moves:
            here = (
                move if move.before_serial is not None else move.after(last.get((move.stream, move.writer)))
            )
            if here.is_break:
                found.append(here)
        last |= {(move.stream, move.writer): move for move in one.last}
    return sorted(found, key=lambda move: move.serial)[:AT_MOST]


def _follow(compared: Comparison, moves: Iterable[Move]) -> tuple[list[ChainBreak], list[ChainBreak]]:
    """Return the breaks as `explain` does, and those with missing facts. Report tokens that go back."""
    breaks, holes = [], []
    for one in moves:
        span = next(span for span in compared.spans if span.first <= one.serial <= span.last)
        is_known = one.before_serial is not None and one.before_serial >= span.first
        if is_known:
            after, expected = one.before_serial or 0, one.before_token or 0
        else:
            known, after = span.starts.get((one.stream, one.writer), (None, 0))
            expected = one.prev_token if known is None else known
        kind = "missing" if one.prev_token > expected else "again"
        for start in compared.table.end.epoch_starts:
            if (one.before_epoch or 0) < start.epoch <= one.epoch and start.stream in {"", one.stream}:
                kind = "epoch_start"
        if one.token == one.prev_token > expected:
            kind = "lost"
        is_excused = _is_excused(compared, one, span, expected, after, is_known=is_known)
        if one.prev_token == expected or (is_excused and kind != "epoch_start"):
            continue
        if kind == "epoch_start" and not is_excused:
            # The new epoch does not explain it.
            kind = "missing" if one.prev_token > expected else "again"
        fields = {
            name: value
            for name, value in msgspec.structs.asdict(one).items()
            if not name.startswith("before_")
        }
        breaks.append(ChainBreak(**fields, expected=expected, kind=kind, after=after))
        if kind == "lost":
            _report_lost(compared, breaks[-1])
        elif not is_excused and one.prev_token > expected:
            holes.append(breaks[-1])
        elif not is_excused:
            _report_chain(compared, breaks[-1])
    return breaks, holes


def _is_excused(
    compared: Comparison, one: Move, span: AuditSpan, expected: int, after: int, *, is_known: bool
) -> bool:
    if one.stream in span.unknown:
        return True
    end, is_ahead = compared.table.end, bool(one.prev_token > expected)
    if span.is_compacted:
        return is_ahead
    # After a loss of facts, a writer continues at an earlier position, which no clock has.
    crossed = not is_known or one.before_epoch != one.epoch
    if crossed and one.prev_token < expected and any(one.stream == lost.stream for lost in end.epoch_starts):
        return True
    # The clock lacks the positions of trimmed facts.
    return after <= end.compacted_upto > 0 and not is_known and is_ahead


def _report_wrong(compared: Comparison, wrong: Sequence[WrongFact]) -> None:
    reported = compared.reported
    spoiled = {one.serial for one in wrong if one.what != "changed-row"} | {serial for _, serial in reported}
    for one in wrong:
        if (one.what, one.serial) in reported or (one.what == "changed-row" and one.serial in spoiled):
            continue
        why = WRONG[one.what].format(one.serial)
        compared.report(one.what, why, one.stream, one.writer, (one.token,), (one.serial,))


def _report_missing(
    compared: Comparison, missing: Sequence[tuple[int, int]], holes: Sequence[ChainBreak]
) -> None:
    """Report missing serials, with their writers if known from other facts."""
    end = compared.table.end.last_serial
    for hole in holes:
        runs = [
            (max(first, hole.after + 1), min(last, hole.serial - 1))
            for first, last in missing
            if first < hole.serial and last > hole.after
        ]
        if runs:
            tokens, serials = (hole.expected + 1, hole.prev_token), (runs[0][0], runs[-1][1])
            why = f"facts of {hole.writer} after token {hole.expected} up to {hole.prev_token} are missing"
            compared.report("missing-row", why, hole.stream, hole.writer, tokens, serials)
        elif hole.serial > end:
            why = f"the last fact of {hole.writer} has token {hole.expected}, and not {hole.prev_token} as in"
            why += " the log of the table"
            compared.found.add("table", why, hole.stream, hole.writer, serials=(end,))
        else:
            _report_chain(compared, hole)
    for first, last in missing:
        span = next((one for one in compared.spans if one.first <= first <= one.last), None)
        is_told = any(first < hole.serial and last > hole.after for hole in holes)
        if is_told or span is None or span.unknown:
            continue
        which = span.short[0].file if len(span.short) == 1 else None
        stream, file = (which.stream, which.path) if which else ("", "")
        why = f"serial {first} is missing" if first == last else f"serials {first} to {last} are missing"
        compared.found.add("missing-row", why, stream, serials=(first, last), file=file)


def _report_unexplained(compared: Comparison) -> None:
    """Report files whose rows are right and differ from the log of the table: the log is wrong."""
    wrong = {one.first_serial for one in compared.found.listed() if one.severity == "error"}
    for span in compared.spans:
        first = min([span.first, *(scan.file.first_serial for scan in span.short)])
        if any(serial is not None and first <= serial <= span.last for serial in wrong):
            continue
        for scan in span.short:
            file = scan.file
            why = f"{file.path} has {scan.rows} rows, serials {scan.first} to {scan.last}; the log of the"
            why += f" table wrongly has {file.rows} rows, serials {file.first_serial} to {file.last_serial}"
            serials = (file.first_serial, file.last_serial)
            compared.found.add("table", why, file.stream, serials=serials, file=file.path)


def _report_lost(compared: Comparison, one: ChainBreak) -> None:
    why = f"{one.writer} wrote facts after token {one.expected} up to {one.token} which the log could not get"
    tokens = (one.expected + 1, one.token)
    compared.report("lost-fact", why, one.stream, one.writer, tokens, (one.serial,))


def _report_chain(compared: Comparison, one: ChainBreak) -> None:
    why = f"{one.writer} continues from token {one.prev_token}, but its previous fact has {one.expected}"
    tokens = (one.expected, one.prev_token)
    if one.prev_token < one.expected:
        tokens = (one.prev_token, max(one.expected, one.token))
    compared.report("broken-chain", why, one.stream, one.writer, tokens, (one.serial,))


def _join(spans: Iterable[AuditSpan]) -> list[AuditSpan]:
    joined: list[AuditSpan] = []
    for span in spans:
        if joined and joined[-1].last + 1 == span.first:
            joined[-1] = msgspec.structs.replace(joined[-1], last=span.last)
        else:
            joined.append(span)
    return joined
