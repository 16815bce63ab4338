"""The page of a report: findings first, then a section per question of an operator."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import msgspec

from synrepl.html.humanize import at, counted, number, printable, rate, share, shortened, size, span
from synrepl.html.markup import LOOK, Markup, details, element, facts, join, mark
from synrepl.pipeline.report.charts import Picture, colors_css
from synrepl.pipeline.report.measurement import Coverage, Measurements
from synrepl.pipeline.report.tables import Table, as_html, folded, named, silent_writers
from synrepl.pipeline.report.verdict import KINDS, Advice

__all__ = ["STATES", "page", "state"]

STATES: Mapping[str, str] = {
    "bad": "Facts are missing or wrong",
    "busy": "Needs attention",
    "good": "Complete",
    "dim": "No facts",
}
"""The headings, by the worst kind of the findings."""

STYLE: Final = (
    LOOK
    + """\
h2{font-size:1.15rem;margin:0 0 .35rem}h3{font-size:.95rem;margin:1.4rem 0 .25rem}
a{color:var(--bar)}
.state.dim{color:var(--soft)}
ul.findings{list-style:none;padding:0;margin:.75rem 0 0}
ul.findings li{border-left:4px solid var(--line);background:var(--card);border-radius:4px;
padding:.4rem .75rem;margin:.35rem 0;font-weight:600}
ul.findings li span{font-weight:400;color:var(--soft)}ul.findings a{color:inherit;
text-decoration-color:var(--soft);text-underline-offset:.2em}
ul.findings li.bad{background:var(--badbg);border-color:var(--bad)}
ul.findings li.busy{background:var(--busybg);border-color:var(--busy)}
ul.findings li.good{background:var(--goodbg);border-color:var(--good)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1rem 0 0}
.figures div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.55rem .85rem}
.figures b{display:block;font-size:1.4rem;line-height:1.25;font-variant-numeric:tabular-nums}
.figures span{color:var(--soft);font-size:.87rem}
nav{margin:1rem 0 0;font-size:.93rem}nav a{margin-right:1rem;white-space:nowrap}
main{margin-top:1rem}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem 1rem;
margin:0 0 1rem;min-width:0}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.15rem 1rem;margin:.3rem 0}
.dim,.note,.files,figcaption{color:var(--soft)}.note{max-width:62rem}.files,figcaption{font-size:.87rem}
figure{margin:.9rem 0 .25rem}figure svg{width:100%;height:auto;display:block}
figure svg.narrow{display:none}
svg.spark{width:7.5rem;height:1.5rem;display:block}svg.spark path{fill:var(--bar)}
td:last-child,th:last-child{padding-right:0}
th{overflow-wrap:normal}td.number{white-space:nowrap}td:first-child{min-width:7rem}
.slim{overflow-x:auto;margin-top:.35rem}th{color:var(--soft);font-weight:500;font-size:.87rem;
vertical-align:bottom}
td:first-child{font-weight:600}
details{border-top:1px solid var(--line);padding:.35rem 0;margin-top:.6rem}
ul.names{columns:16rem;padding-left:1.1rem;margin:.3rem 0}
footer{padding:0 1rem 1.5rem;color:var(--soft);font-size:.87rem}
@media(max-width:46rem){section{padding:.75rem}figure svg.wide{display:none}
figure svg.narrow{display:block}.slim td,.slim th{padding-right:.7rem}
.state small{display:block;line-height:1.4}
.slim td{white-space:nowrap}.slim td:first-child{white-space:normal;max-width:11rem}
.slim th{min-width:3.2rem}td:first-child{min-width:8rem}
.figures{grid-template-columns:repeat(2,minmax(0,1fr));gap:.5rem}.figures b{font-size:1.15rem}
dl{grid-template-columns:6.5rem minmax(0,1fr);gap:.15rem .5rem}}
@media print{body{background:none}section{break-inside:avoid-page;border:0;padding:0}nav{display:none}}
"""
)

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""The policy forbids all requests, whatever names the page contains. Charts are styled inline."""

HEAD: Final = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
)


class _Content(msgspec.Struct, frozen=True):
    """The content of the page: measurements, tables and charts, by name."""

    measured: Measurements
    tables: Mapping[str, Table]
    drawn: Mapping[str, Picture]

    def figure(self, name: str, caption: str, table: str) -> Markup:
        """Render a chart with links to its file and to the table of its data; nothing if it has no data."""
        if name not in self.drawn:
            return Markup()
        picture = self.drawn[name]
        links = join([f"{caption} ", named(picture.file), ", ", named(self.tables[table].file)])
        return element("figure", join([picture.svg, element("figcaption", links)]))


def state(found: Sequence[Advice]) -> str:
    """Return the worst kind of the findings: a key of `STATES`."""
    kinds = {one.kind for one in found}
    return next((kind for kind in KINDS[:3] if kind in kinds), "dim")


def page(
    measured: Measurements,
    found: Sequence[Advice],
    tables: Mapping[str, Table],
    drawn: Mapping[str, Picture],
) -> str:
    """Render the page, which links all files of the report."""
    content, covers = _Content(measured, tables, drawn), measured.covers
    kind = state(found)
    heading: list[object] = [element("span", STATES[kind])]
    ends = [("leases", "Leases", _leases(content)), ("files", "Files", _files(content))]
    if covers is None:
        name = ""
        header = [element("p", f"There are no facts in the archive {measured.position}.")]
        sections = ends
    else:
        name = printable(covers.server_name) or "an unnamed server"
        days = f"{at(covers.first_ms, seconds=False)} to {at(covers.last_ms, seconds=False)}"
        heading += [" ", element("small", f"· {days}")]
        sections = [
            ("covers", "Coverage", _covers(content, covers)),
            ("throughput", "Throughput", _throughput(content, covers)),
            ("lag", "Lag", _lag(content, covers)),
            ("hours", "Busiest hours", _hours(content)),
            ("sizes", "Sizes", _sizes(content)),
            ("caches", "Cache invalidations", _caches(content)),
            ("gaps", "Gaps and repairs", _gaps(content, covers)),
            *ends,
        ]
        links = (element("a", title, href=f"#{section}") for section, title, _ in sections)
        header = [_findings(found), _figures(measured, covers), element("nav", join(links))]
    title = " · ".join(filter(None, ("synrepl report", name)))
    top = [element("h1", title), element("p", join(heading), class_=f"state {kind}"), *header]
    body = [
        element("header", join(top)),
        element(
            "main",
            join(
                element("section", join([element("h2", title), *parts]), id=section)
                for section, title, parts in sections
            ),
        ),
        element(
            "footer",
            f"{measured.position}; all times are UTC. Counted from the files that the manifests name.",
        ),
    ]
    title = ": ".join(filter(None, (STATES[kind], name)))
    style = f"<style>{STYLE}{colors_css()}</style>"
    return f"{HEAD}<title>{escape(title)}</title>{style}</head><body>{join(body)}</body></html>\n"


def _findings(found: Sequence[Advice]) -> Markup:
    lines = []
    for one in found:
        text = element("a", one.text, href=f"#{one.where}") if one.where else element("b", one.text)
        more = element("span", f": {one.more}") if one.more else ""
        lines.append(element("li", join([text, more]), class_=one.kind))
    return element("ul", join(lines), class_="findings") if lines else Markup()


def _figures(measured: Measurements, covers: Coverage) -> Markup:
    tiles = [
        (number(measured.total("facts")), "facts"),
        (number(measured.total("rows")), "rows"),
        (size(measured.total("bytes")), "of rows"),
        (span(covers.seconds), "covered"),
        (number(len(covers.writers)), f"streams of {counted(len(covers.all_writers), 'writer')}"),
    ]
    if measured.invalidations is not None:
        tiles.append((number(measured.invalidations.meant), "cache invalidations"))
    cells = (element("div", join([element("b", value), element("span", name)])) for value, name in tiles)
    return element("div", join(cells), class_="figures")


def _covers(content: _Content, covers: Coverage) -> list[Markup]:
    measured, epoch_starts = content.measured, content.tables["epoch_starts"]
    count, rows, empty = (measured.total(name) for name in ("facts", "rows", "empty"))
    first, last = covers.epochs
    lines = [
        ("server", printable(covers.server_name) or "(no name)"),
        ("history", shortened(covers.history) or None),
        ("from", at(covers.first_ms)),
        ("to", f"{at(covers.last_ms)} ({span(covers.seconds)})"),
        ("serials", f"{covers.first_serial:,} to {covers.last_serial:,}"),
        ("facts", f"{count:,}; {rate(count, covers.seconds, 'facts')} on average"),
        ("rows", f"{rows:,}" + (f"; {counted(empty, 'fact')} without rows" if empty else "")),
        ("bytes of rows", f"{size(measured.total('bytes'))} of JSON"),
        ("streams", ", ".join(map(shortened, covers.writers))),
        ("writers", f"{len(covers.all_writers)}: {', '.join(map(shortened, covers.all_writers))}"),
        ("epochs", f"{first} to {last}" if first != last else f"{last}"),
        (
            "files",
            f"{covers.files:,} in {counted(covers.batches, 'batch', 'batches')}, {size(covers.file_bytes)}",
        ),
        ("archived until", at(covers.archived_ms) if covers.archived_ms else None),
        ("digest", shortened(covers.digest, 20)),
    ]
    return [facts(lines), *([element("h3", "Epochs"), as_html(epoch_starts)] if epoch_starts.rows else [])]


def _throughput(content: _Content, covers: Coverage) -> list[Markup]:
    measured, tables = content.measured, content.tables
    peak_facts, peak_rows = measured.peaks.get((None, None), (0, 0))
    count, rows = (rate(measured.total(name), covers.seconds, name) for name in ("facts", "rows"))
    steps = f"Each step is {_a(measured.bins.name)}."
    sparks = [_spark(measured, row["stream"]) for row in tables["streams"].rows]
    return [
        _note(
            f"The average is {count} and {rows}. The peaks in one second are {counted(peak_facts, 'fact')}"
            f" and {counted(peak_rows, 'row')}, not necessarily in the same second."
        ),
        content.figure("throughput", f"Rows by stream, stacked. {steps}", "throughput"),
        content.figure("writers", f"The same rows by writer, stacked. {steps}", "throughput"),
        element("h3", "Totals by stream"),
        as_html(tables["streams"], extra={"rows over time": sparks}),
        _note("Each small chart has its own scale."),
        folded("Totals by writer", tables["writers"]),
    ]


def _lag(content: _Content, covers: Coverage) -> list[Markup]:
    measured = content.measured
    merged = (
        f" {counted(covers.merged, 'batch was', 'batches were')} merged from smaller batches, which are shown"
        " separately; if there were many, a point is several adjacent batches, with their longest lag."
    )
    made = [
        element("h3", "Archive lag"),
        _note(
            "The archive lag is the time from the commit of a fact in the daemon until its batch is archived."
            " Most of the lag is the time that a batch takes to fill. The lag of workers is not measured."
            f"{merged if covers.merged else ''}"
        ),
        content.figure(
            "lag", "Each point is a batch: the archive lag of its last fact. Log scale.", "batches"
        ),
        as_html(content.tables["lag"], at_most=12),
        element("h3", "Writer lag"),
    ]
    if not measured.lags:
        return [*made, _note("No stream has several writers, so no writer lags behind another.")]
    note = (
        "For streams with several writers: the time since the last fact of each writer, at the end of"
        f" each step of {measured.bins.name}. Facts without rows count: they certify the position of an idle"
        " writer. A line that climbs while others stay low is a writer that is idle or hangs. Readers that"
        " need the positions of all writers wait for this writer."
    )
    caption = "Time since the last fact of each writer, log scale, UTC."
    return [
        *made,
        _note(note),
        content.figure("silence", caption, "silence"),
        as_html(silent_writers(measured), at_most=12),
    ]


def _hours(content: _Content) -> list[Markup]:
    table = content.tables["hours"]
    if not table.rows:
        return []
    unit = "hour" if content.measured.hours_width == 3600 else "minute"
    first = table.rows[0]
    of_all = share(first["facts"], content.measured.total("facts"))
    return [
        _note(
            f"The busiest {unit} began at {at(first['at'] * 1000, seconds=False)}, with"
            f" {counted(first['facts'], 'fact')} ({of_all} of all) and {counted(first['rows'], 'row')}."
        ),
        content.figure("hours", f"Facts per {unit}; a blank cell has none.", "hours"),
        details(f"The busiest {unit}s", as_html(table, at_most=10)),
    ]


def _sizes(content: _Content) -> list[Markup]:
    tables = content.tables
    if not tables["sizes"].rows:
        return [_note("No fact has rows.")]
    caption = "Number of facts by size. Each bar covers twice the range of the one above. Log scale."
    by_stream = "By stream: the median, the size that 99 % do not exceed, and the largest fact. Log scale."
    return [
        _note("The size of a fact is the size of its rows as JSON. Facts without rows are not included."),
        content.figure("sizes", caption, "spread"),
        content.figure("percentiles", by_stream, "sizes"),
        as_html(tables["sizes"]),
        folded(f"The {len(tables['largest'].rows)} largest facts", tables["largest"]),
    ]


def _caches(content: _Content) -> list[Markup]:
    measured, tables = content.measured, content.tables
    found = measured.invalidations
    if found is None or not found.names:
        return [_note("There are no cache invalidations: the archive has no rows of the stream caches.")]
    count = sum(row["facts"] - row["empty"] for row in measured.totals if row["stream"] == "caches")
    rows, meant, whole = found.total("rows"), found.meant, found.total("whole")
    misshapen, unreadable = found.total("misshapen"), found.total("unreadable")
    busiest = max((row["busiest_minute"] for row in found.minutes), default=0)
    lines: list[tuple[str, object]] = [
        ("invalidations", f"{meant:,}, as workers apply them"),
        ("rows", f"{rows:,}, with {meant / rows if rows else 0:.1f} invalidations per row on average"),
        ("facts", f"{count:,}, with {rows / count if count else 0:.1f} rows per fact on average"),
        ("of whole caches", f"{whole:,}, {share(whole, meant)} of all"),
        ("distinct keys", f"{found.distinct:,}"),
        ("busiest minute", counted(busiest, "invalidation")),
    ]
    if meant > count:
        saved = (
            f"{share(rows - count, rows)} fewer facts than with one row each, {share(meant - count, meant)}"
        )
        lines.insert(3, ("saved", f"{saved} fewer than with one invalidation each"))
    if misshapen:
        effect = ": the keys do not fit the name, so all caches of the name are invalidated"
        lines.append(("unexpected keys", join([mark(counted(misshapen, "row"), "busy"), effect])))
    if unreadable:
        many = counted(unreadable, "row or key", "rows or keys")
        lines.append(("unreadable", join([mark(many, "busy"), ", not counted"])))
    steps = f"Average per minute; each step is {_a(measured.minutes.name)}. Areas overlap."
    many = counted(len(found.caches), "cache")
    return [
        _note(
            "A name such as cs_cache_fake stands for entries of several caches. Names are expanded as workers"
            " expand them, by the rules of the newest known Synapse release. Invalidations that other streams"
            " imply (such as an event that invalidates caches of its room) are not counted."
        ),
        facts(lines),
        content.figure("invalidations", steps, "invalidations"),
        element("h3", "Hot caches"),
        content.figure("caches", f"The {measured.top} caches with the most invalidations.", "caches"),
        details(f"Numbers of {many}", as_html(tables["caches"], at_most=measured.top)),
        element("h3", "Hot keys"),
        _note("A key is the room, user or other argument of an entry, in any cache."),
        as_html(tables["subjects"]),
        folded("Keys by cache", tables["keys"]),
        element("h3", "Announced names"),
        as_html(tables["names"], at_most=measured.top),
    ]


def _gaps(content: _Content, covers: Coverage) -> list[Markup]:
    measured, tables = content.measured, content.tables
    missing, again, explained = (
        sum(one.kind == kind for one in measured.broken) for kind in ("missing", "again", "epoch_start")
    )
    late, skipping, skipped, copied = (
        measured.total(name) for name in ("late", "skipping", "skipped", "copied")
    )
    doubles, epochs = sum(measured.doubles.values()), len(covers.epoch_starts)
    void = counted(sum(measured.voided.values()), "void fact")
    breaks = counted(explained, "break")
    lines = [
        ("gaps", mark(counted(missing, "gap"), "bad") if missing else mark("none", "good")),
        ("repeated tokens", mark(counted(again, "break"), "bad") if again else "none"),
        ("duplicates", mark(counted(copied, "fact"), "bad") if copied else "none"),
        ("new epochs", f"{epochs:,}; they explain {breaks} and {void}" if epochs else "none"),
        ("late", f"{counted(late, 'fact')} behind the position of their writer, as in unordered streams"),
        (
            "unused tokens",
            f"{skipped:,} before {counted(skipping, 'fact')}; prev_token shows that none is missing",
        ),
        ("shared tokens", f"{counted(doubles, 'token')} of several writers" if doubles else "none"),
    ]
    made = [
        _note(
            "Each fact has the previous token of its writer (prev_token). If this is the token of the"
            " previous fact, no fact between them is missing, even if tokens between them are unused. If not,"
            " there is a gap."
        ),
        facts(lines),
    ]
    if covers.compacted is not None:
        trimmed = f"Up to serial {covers.compacted:,} the log was trimmed, so gaps there are not detected."
        made.append(_note(trimmed))
    if tables["breaks"].rows:
        made += [element("h3", "Breaks"), as_html(tables["breaks"], at_most=measured.top)]
    return [*made, folded("By writer", tables["chains"])]


def _leases(content: _Content) -> list[Markup]:
    daemon, table = content.measured.daemon, content.tables["leases"]
    if daemon is None:
        return [_note("No daemon was queried. Run the report with --url to see its leases and their lag.")]
    if daemon.trouble:
        return [_note(f"The status of {daemon.url} is unavailable: {daemon.trouble}.")]
    found, repaired, lost = (
        daemon.gaps.get(f"synrepl_gaps_{kind}_total") for kind in ("detected", "repaired", "lost")
    )
    gaps = None
    if found is not None:
        final = mark(f"{lost or 0:,} unrecoverable", "bad") if lost else "none unrecoverable"
        gaps = join(
            [f"{found:,} found, {repaired or 0:,} repaired, ", final, " since the start of the daemon"]
        )
    status = daemon.status
    lines = [
        ("daemon", f"{daemon.url}, {_value(status.get('role'))}, {_value(status.get('state'))}"),
        ("current serial", _value(status.get("serial"))),
        ("gaps", gaps),
    ]
    note = (
        "The status of the daemon at the time of the report. The log retains facts after the serial of a"
        " lease. A lease that reaches its limit ends, and its reader starts again."
    )
    return [_note(note), facts(lines), as_html(table) if table.rows else _note("There are no leases.")]


def _files(content: _Content) -> list[Markup]:
    files = [one.file for found in (content.drawn, content.tables) for one in found.values()]
    lines = join(element("li", named(file)) for file in files)
    note = "The charts as PNG, and the tables with all rows as CSV. Times in the files are UTC."
    return [_note(note), element("ul", lines, class_="names")]


def _spark(measured: Measurements, stream: str) -> Markup:
    """Render a sparkline of rows over time."""
    bins = measured.bins
    values = [0] * bins.count
    for row in measured.over_time:
        if row["stream"] == stream:
            values[row["bin"]] += row["rows"]
    most = max(values) or 1
    path = "".join(
        f"M{index} 24V{24 - 23 * value / most:.1f}h1V24z" for index, value in enumerate(values) if value
    )
    return Markup(
        f'<svg class="spark" viewBox="0 0 {bins.count} 24" preserveAspectRatio="none" role="img"'
        f' aria-label="peak: {most:,} rows in {_a(bins.name)}"><path d="{path}"/></svg>'
    )


def _note(text: str) -> Markup:
    return element("p", text, class_="note")


def _a(name: str) -> str:
    if name[0].isdigit():
        return name
    return f"an {name}" if name == "hour" else f"a {name}"


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else shortened(str(value))
