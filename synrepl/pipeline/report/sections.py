"""Sections of the page, one per question of an operator."""

from collections.abc import Mapping

from synrepl.html.humanize import (
    at,
    counted,
    printable,
    rate,
    share,
    shortened,
    size,
    span,
)
from synrepl.html.markup import Markup, details, element, facts, join, mark
from synrepl.pipeline.report.coverage import Coverage
from synrepl.pipeline.report.measurements import Measurements
from synrepl.pipeline.report.style import Picture
from synrepl.pipeline.report.tables import Column, Table, as_html, folded, named

__all__ = ["Section", "sections", "sections_without_facts"]

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
    wide = Markup(picture.wide.replace("<svg ", '<svg class="wide" ', 1))
    narrow = Markup(picture.narrow.replace("<svg ", '<svg class="narrow" ', 1))
    said = join([f"{caption} ", named(picture.file), ", ", named(table.file)])
    return element("figure", join([wide, narrow, element("figcaption", said)]))


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
