"""The page of a report: findings first, then the sections."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from synrepl.html.humanize import (
    at,
    counted,
    number,
    printable,
    rate,
    share,
    shortened,
    size,
    span,
)
from synrepl.html.markup import Markup, details, element, facts, join, mark
from synrepl.html.theme import LOOK
from synrepl.pipeline.report.charts import Picture, colors_css
from synrepl.pipeline.report.measurement import Coverage, Measurements
from synrepl.pipeline.report.tables import Column, Table, as_html, folded, named
from synrepl.pipeline.report.verdict import KINDS, Advice

__all__ = ["Section", "sections", "sections_without_facts", "shell", "STATES", "page", "state"]

Section = tuple[str, str, list[Markup]]
"""Name, title and content of a section."""


def sections(
    measured: Measurements, covers: Coverage, tables: Mapping[str, Table], drawn: Mapping[str, Picture]
) -> list[Section]:
    """Return all sections, in order."""
    return [
        ("covers", "What it covers", _covers(measured, covers, tables)),
        ("throughput", "Throughput", _throughput(measured, covers, tables, drawn)),
        ("lag", "Lag", _lag(measured, covers, tables, drawn)),
        ("hours", "Busiest hours", _hours(measured, tables, drawn)),
        ("sizes", "Sizes", _sizes(tables, drawn)),
        ("caches", "Cache invalidations", _caches(measured, tables, drawn)),
        ("gaps", "Gaps and repairs", _gaps(measured, covers, tables)),
        ("leases", "Leases", _leases(measured, tables)),
        ("files", "Files", _files(tables, drawn)),
    ]


def sections_without_facts(measured: Measurements, tables: Mapping[str, Table]) -> list[Section]:
    """Return the sections of an archive without facts."""
    return [("leases", "Leases", _leases(measured, tables)), ("files", "Files", _files(tables, {}))]


def _covers(measured: Measurements, covers: Coverage, tables: Mapping[str, Table]) -> list[Markup]:
    writers = {writer for found in covers.writers.values() for writer in found}
    first, last = covers.epochs
    facts_, rows, empty = (measured.total(name) for name in ("facts", "rows", "empty"))
    lines = [
        ("server", printable(covers.server_name) or "(no name)"),
        ("history", shortened(covers.history) or None),
        ("from", at(covers.first_ms)),
        ("to", f"{at(covers.last_ms)} ({span(covers.seconds)})"),
        ("serials", f"{covers.first_serial:,} to {covers.last_serial:,}"),
        ("facts", f"{facts_:,}; {rate(facts_, covers.seconds, 'facts')} on average"),
        ("rows", f"{rows:,}" + (f"; {counted(empty, 'fact')} without rows" if empty else "")),
        ("bytes of rows", f"{size(measured.total('bytes'))} of JSON"),
        ("streams", ", ".join(map(shortened, covers.writers))),
        ("writers", f"{len(writers)}: {', '.join(map(shortened, sorted(writers)))}"),
        ("epochs", f"{first} to {last}" if first != last else f"{last}, no turns"),
        (
            "archived",
            f"until {at(covers.archived_ms)}, in {counted(covers.batches, 'batch', 'batches')}"
            if covers.archived_ms
            else None,
        ),
        ("files", f"{covers.files:,}, {size(covers.file_bytes)}"),
        ("digest", shortened(covers.digest, 20)),
    ]
    epoch_starts = tables["epoch_starts"]
    return [facts(lines), *([element("h3", "Turns"), as_html(epoch_starts)] if epoch_starts.rows else [])]


def _throughput(
    measured: Measurements, covers: Coverage, tables: Mapping[str, Table], drawn: Mapping[str, Picture]
) -> list[Markup]:
    most_facts, most_rows = measured.peaks.get((None, None), (0, 0))
    each = f"Each step is {_a(measured.bins.name)}."
    facts_, rows = measured.total("facts"), measured.total("rows")
    note = (
        f"On average {rate(facts_, covers.seconds, 'facts')} and {rate(rows, covers.seconds, 'rows')}. The"
        f" most in one second were {counted(most_facts, 'fact')}, and {counted(most_rows, 'row')} (perhaps in"
        " another)."
    )
    sparks = [_spark(measured, row["stream"]) for row in tables["streams"].rows]
    return [
        _note(note),
        _figure(drawn, "throughput", f"Rows by stream, stacked. {each}", tables["throughput"]),
        _figure(drawn, "writers", f"The same rows by writer, stacked. {each}", tables["throughput"]),
        element("h3", "Totals by stream"),
        as_html(tables["streams"], extra={"rows over time": sparks}),
        _note("Each small picture has a scale of its own."),
        folded("Totals by writer", tables["writers"]),
    ]


def _lag(
    measured: Measurements, covers: Coverage, tables: Mapping[str, Table], drawn: Mapping[str, Picture]
) -> list[Markup]:
    made = [
        element("h3", "Until facts were archived"),
        _note(
            "From the commit of a fact in the daemon until its batch was in the archive. Most of it is the"
            " time that a batch is left to fill; it says nothing of how fast workers heard."
        ),
    ]
    if covers.merged:
        merged = counted(covers.merged, "batch was", "batches were")
        made.append(
            _note(
                f"{merged} merged from smaller ones. Points tell of these; where there were very many, one"
                " stands for some neighbors, with the longest wait of theirs."
            )
        )
    caption = "Each point is a batch: how long after its last commit it was archived. Log scale."
    made += [
        _figure(drawn, "lag", caption, tables["batches"]),
        as_html(tables["lag"], at_most=12),
        element("h3", "Writers behind their streams"),
    ]
    if not measured.standing:
        return [*made, _note("No stream has more than one writer, so none can be behind another.")]
    note = (
        "Of streams with several writers: how long each had said nothing, at the end of"
        f" {_a(measured.bins.name)}. Facts without rows count, as they say how far an idle writer is. A line"
        " that climbs while others stay low is a writer that is idle, or hangs; whoever waits for it waits as"
        " long."
    )
    worst = sorted(
        ((one, one.silent[-1], one.behind[-1]) for one in measured.standing),
        key=lambda found: -(found[1] or 0.0),
    )
    rows = [
        {
            "stream": one.stream,
            "writer": one.writer,
            "silent": silent,
            "behind": behind,
            "longest": one.silent_most,
        }
        for one, silent, behind in worst
    ]
    shown = Table(
        "silence",
        (
            *(Column(name, name) for name in ("stream", "writer")),
            Column("silent", "silent at the end for", span),
            Column("behind", "tokens behind then"),
            Column("longest", "longest silence", span),
        ),
        rows,
    )
    return [
        *made,
        _note(note),
        _figure(drawn, "silence", "Time since each writer's last fact, log scale, UTC.", tables["silence"]),
        as_html(shown, at_most=12),
    ]


def _hours(measured: Measurements, tables: Mapping[str, Table], drawn: Mapping[str, Picture]) -> list[Markup]:
    rows = tables["hours"].rows
    if not rows:
        return []
    of = "hour" if measured.hours_width == 3600 else "minute"
    first = rows[0]
    note = (
        f"The busiest {of} began {at(first['at'] * 1000, seconds=False)}, with"
        f" {counted(first['facts'], 'fact')} ({share(first['facts'], measured.total('facts'))} of all) and"
        f" {counted(first['rows'], 'row')}."
    )
    caption = f"Facts in each {of}; what is blank had none."
    return [
        _note(note),
        _figure(drawn, "hours", caption, tables["hours"]),
        details(f"The busiest {of}s", as_html(tables["hours"], at_most=10)),
    ]


def _sizes(tables: Mapping[str, Table], drawn: Mapping[str, Picture]) -> list[Markup]:
    if not tables["sizes"].rows:
        return [_note("No fact has rows.")]
    return [
        _note("The size of a fact is that of its rows as JSON. Facts without rows are left out."),
        _figure(
            drawn, "sizes", "How many facts are how large. Both scales are logarithmic.", tables["spread"]
        ),
        _figure(
            drawn,
            "percentiles",
            "By stream: the dot is the median, the bar reaches to 99 %, the line to the largest.",
            tables["sizes"],
        ),
        as_html(tables["sizes"]),
        folded(f"The {len(tables['largest'].rows)} largest facts", tables["largest"]),
    ]


def _caches(
    measured: Measurements, tables: Mapping[str, Table], drawn: Mapping[str, Picture]
) -> list[Markup]:
    told = measured.invalidations
    if told is None or not told.names:
        return [_note("No caches were invalidated: there are no rows of the stream caches in here.")]
    facts_ = sum(row["facts"] - row["empty"] for row in measured.totals if row["stream"] == "caches")
    rows = told.total("rows")
    busiest = max((row["busiest_minute"] for row in told.minutes), default=0)
    saved = [
        ("meant", f"{told.meant:,} invalidations, as workers carry them out"),
        ("told in", f"{rows:,} rows: one stands for {told.meant / rows if rows else 0:.1f} on average"),
        ("sent in", f"{facts_:,} facts: {rows / facts_ if facts_ else 0:.1f} rows in one on average"),
        (
            "so saved",
            f"{share(rows - facts_, rows)} of the facts that there were with one row in each, and"
            f" {share(told.meant - facts_, told.meant)} of those with one invalidation in each"
            if told.meant > facts_
            else None,
        ),
        ("of a whole cache", f"{told.total('whole'):,}, {share(told.total('whole'), told.meant)} of all"),
        ("different keys", f"{told.distinct:,}"),
        ("fullest minute", counted(busiest, "invalidation")),
    ]
    if told.total("misshapen"):
        why = "their keys are not those that the name takes; each drops all that it could mean"
        saved.append(("misshapen", join([mark(counted(told.total("misshapen"), "row"), "busy"), f": {why}"])))
    if told.total("unreadable"):
        many = counted(told.total("unreadable"), "row or key", "rows or keys")
        saved.append(("unreadable", join([mark(many, "busy"), ", left out"])))
    each = _a(measured.minutes.name)
    return [
        _note(
            "Names like cs_cache_fake stand for entries of many caches. Here they are expanded as our workers"
            " expand them, by what the newest known release means. Invalidations that other streams imply (an"
            " event that drops what is known of its room) are not told on caches, and not counted."
        ),
        facts(saved),
        _figure(
            drawn,
            "invalidations",
            f"Per minute, each step the average of {each}. What is in front is a part of what is behind it.",
            tables["invalidations"],
        ),
        element("h3", "Hot caches"),
        _figure(drawn, "caches", f"The {measured.top} caches with the most invalidations.", tables["caches"]),
        details(
            f"{counted(len(told.caches), 'cache')} in numbers",
            as_html(tables["caches"], at_most=measured.top),
        ),
        element("h3", "Hot keys"),
        _note("A key is the room, user or whatever else entries are of, here in whichever caches."),
        as_html(tables["subjects"]),
        folded("Keys in one cache", tables["keys"]),
        element("h3", "Names as they were told"),
        as_html(tables["names"], at_most=measured.top),
    ]


def _gaps(measured: Measurements, covers: Coverage, tables: Mapping[str, Table]) -> list[Markup]:
    kinds = {
        kind: sum(one.kind == kind for one in measured.broken) for kind in ("missing", "again", "epoch_start")
    }
    late, skipping, skipped, copied = (
        measured.total(name) for name in ("late", "skipping", "skipped", "copied")
    )
    doubles = sum(measured.doubles.values())
    lines = [
        (
            "missing",
            mark(
                f"{counted(kinds['missing'], 'place')} where a fact does not follow the one before it", "bad"
            )
            if kinds["missing"]
            else mark("nothing", "good"),
        ),
        ("went back", mark(counted(kinds["again"], "position"), "bad") if kinds["again"] else "nowhere"),
        ("there twice", mark(counted(copied, "fact"), "bad") if copied else "nothing"),
        (
            "new epochs",
            f"{counted(len(covers.epoch_starts), 'epoch')}; "
            f"{counted(kinds['epoch_start'], 'break')} that they explain, "
            f"{counted(sum(measured.voided.values()), 'void fact')}"
            if covers.epoch_starts
            else "none",
        ),
        ("late", f"{counted(late, 'fact')} behind their writer's position, as unordered streams have them"),
        (
            "skipped tokens",
            f"{skipped:,} by {counted(skipping, 'fact')}: others' or never used, as prev_token certifies",
        ),
        (
            "told by several",
            f"{counted(doubles, 'token')} told by more than one writer" if doubles else "none",
        ),
    ]
    note = (
        "Each fact says which token its writer was at before it (prev_token). Where that is the token of the"
        " fact before, nothing lies between them, however far apart the numbers are; where not, something is"
        " missing."
    )
    made = [_note(note), facts(lines)]
    if covers.compacted is not None:
        made.append(
            _note(f"Up to serial {covers.compacted:,} the log had been trimmed: there, nothing can be said.")
        )
    if tables["breaks"].rows:
        made += [element("h3", "Breaks"), as_html(tables["breaks"], at_most=measured.top)]
    return [*made, folded("By writer", tables["chains"])]


def _leases(measured: Measurements, tables: Mapping[str, Table]) -> list[Markup]:
    daemon = measured.daemon
    if daemon is None:
        return [_note("No daemon was asked: who reads the log, and how far they are, is not in an archive.")]
    if daemon.trouble:
        return [_note(f"{daemon.url} was asked, but {daemon.trouble}.")]
    status = daemon.status
    found, repaired, lost = (
        daemon.gaps.get(f"synrepl_gaps_{what}_total") for what in ("detected", "repaired", "lost")
    )
    gaps = None
    if found is not None:
        gone = mark(f"{lost or 0:,} given up", "bad") if lost else "none given up"
        gaps = join([f"{found:,} found, {repaired or 0:,} repaired, ", gone, " since it started"])
    lines = [
        ("daemon", f"{daemon.url}, {_said(status.get('role'))}, {_said(status.get('state'))}"),
        ("serial now", _said(status.get("serial"))),
        ("gaps it heard", gaps),
    ]
    shown = as_html(tables["leases"]) if tables["leases"].rows else _note("Nobody has a lease.")
    note = (
        "The log is kept from the serial of a lease on; one that is used up ends, and its reader starts over."
    )
    return [_note(f"As of when this was made. {note}"), facts(lines), shown]


def _files(tables: Mapping[str, Table], drawn: Mapping[str, Picture]) -> list[Markup]:
    pictures = [picture.file for picture in drawn.values()]
    names = [*pictures, *(table.file for table in tables.values())]
    lines = join(element("li", named(name)) for name in names)
    note = "Beside this page: pictures, and tables with all their rows. Times in them are UTC."
    return [_note(note), element("ul", lines, class_="names")]


def _figure(drawn: Mapping[str, Picture], name: str, caption: str, table: Table) -> Markup:
    if name not in drawn:
        return Markup()
    picture = drawn[name]
    said = join([f"{caption} ", named(picture.file), ", ", named(table.file)])
    return element("figure", join([picture.svg, element("figcaption", said)]))


def _spark(measured: Measurements, stream: str) -> Markup:
    """Render a sparkline of rows over time."""
    bins = measured.bins
    values = [0] * bins.count
    for row in measured.over_time:
        if row["stream"] == stream:
            values[row["bin"]] += row["rows"]
    most = max(values) or 1
    path = "".join(
        f"M{position} 24V{24 - 23 * value / most:.1f}h1V24z" for position, value in enumerate(values) if value
    )
    return Markup(
        f'<svg class="spark" viewBox="0 0 {bins.count} 24" preserveAspectRatio="none" role="img"'
        f' aria-label="most: {most:,} rows in {_a(bins.name)}"><path d="{path}"/></svg>'
    )


def _note(said: str) -> Markup:
    return element("p", said, class_="note")


def _a(name: str) -> str:
    if name[0].isdigit():
        return name
    return f"an {name}" if name == "hour" else f"a {name}"


def _said(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else shortened(str(value))


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
"""The policy forbids all requests, whatever names the page contains. Plots are styled inline."""

HEAD: Final = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
)


def shell(title: str, body: Markup) -> str:
    """Render the whole page."""
    return (
        f"{HEAD}<title>{escape(title)}</title><style>{STYLE}{colors_css()}</style></head>"
        f"<body>{body}</body></html>\n"
    )


STATES: Mapping[str, tuple[str, str]] = {
    "bad": ("Something is missing", "bad"),
    "busy": ("Look at this", "busy"),
    "good": ("Whole", "good"),
    "dim": ("Nothing here", "dim"),
}


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
    covers = measured.covers
    if covers is None:
        return _empty(measured, tables)
    who = printable(covers.server_name) or "an unnamed server"
    word, kind = STATES[state(found)]
    days = f"{at(covers.first_ms, seconds=False)} to {at(covers.last_ms, seconds=False)}"
    heading = Markup(f"{element('span', word)} {element('small', '· ' + days)}")
    made = sections(measured, covers, tables, drawn)
    header = element(
        "header",
        join(
            [
                element("h1", f"synrepl report · {who}"),
                element("p", heading, class_=f"state {kind}"),
                _findings(found),
                _figures(measured, covers),
                element("nav", join(element("a", title, href=f"#{name}") for name, title, _ in made)),
            ]
        ),
    )
    parts = [element("section", join([element("h2", title), *body]), id=name) for name, title, body in made]
    footer = element(
        "footer",
        f"{measured.position}; all times are UTC. Counted by Spark from the files that the manifests name.",
    )
    return shell(f"{word}: {who}", join([header, element("main", join(parts)), footer]))


def _empty(measured: Measurements, tables: Mapping[str, Table]) -> str:
    word, kind = STATES["dim"]
    body = join(
        [
            element(
                "header",
                join(
                    [
                        element("h1", "synrepl report"),
                        element("p", element("span", word), class_=f"state {kind}"),
                        element("p", f"There are no facts in the archive {measured.position}."),
                    ]
                ),
            ),
            element(
                "main",
                join(
                    element("section", join([element("h2", title), *body]))
                    for _, title, body in sections_without_facts(measured, tables)
                ),
            ),
        ]
    )
    return shell("Nothing here", body)


def _findings(found: Sequence[Advice]) -> Markup:
    lines = []
    for one in found:
        what = element("a", one.text, href=f"#{one.where}") if one.where else Markup(element("b", one.text))
        more = element("span", f": {one.more}") if one.more else ""
        lines.append(element("li", join([what, more]), class_=one.kind))
    return element("ul", join(lines), class_="findings") if lines else Markup()


def _figures(measured: Measurements, covers: Coverage) -> Markup:
    told = measured.invalidations
    writers = {writer for found in covers.writers.values() for writer in found}
    tiles = [
        (number(measured.total("facts")), "facts"),
        (number(measured.total("rows")), "rows"),
        (size(measured.total("bytes")), "of rows"),
        (span(covers.seconds), "covered"),
        (number(len(covers.writers)), f"streams of {counted(len(writers), 'writer')}"),
    ]
    if told is not None:
        tiles.append((number(told.meant), "cache invalidations"))
    cells = (element("div", join([element("b", value), element("span", name)])) for value, name in tiles)
    return element("div", join(cells), class_="figures")
