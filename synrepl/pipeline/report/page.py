"""The page of a report: findings first, then the sections."""

from collections.abc import Mapping, Sequence

from synrepl.html.humanize import (
    at,
    counted,
    number,
    printable,
    size,
    span,
)
from synrepl.html.markup import Markup, element, join
from synrepl.pipeline.report.coverage import Coverage
from synrepl.pipeline.report.measurements import Measurements
from synrepl.pipeline.report.sections import sections, sections_without_facts
from synrepl.pipeline.report.shell import shell
from synrepl.pipeline.report.style import Picture
from synrepl.pipeline.report.tables import Table
from synrepl.pipeline.report.verdict import KINDS, Advice

__all__ = ["STATES", "page", "state"]

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
