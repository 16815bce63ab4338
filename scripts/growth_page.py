"""Writes the tables and the picture of a run of `scripts/bench --only growth` into the manual.

    scripts/bench --only growth --json >docs/explanation/growth.json
    scripts/growth-page

The tables go between two comments of docs/explanation/performance.md, the picture to docs/images/growth.svg.
"""

import io
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

import msgspec

from scripts.bench_parts.growth_points import Point
from scripts.bench_parts.measuring import ROOT, number
from scripts.lib.diagrams import checksum

__all__ = ["PAGE", "PICTURE", "RESULTS", "draw", "read", "tables", "with_tables"]

RESULTS: Final = ROOT / "docs" / "explanation" / "growth.json"
PAGE: Final = ROOT / "docs" / "explanation" / "performance.md"
PICTURE: Final = ROOT / "docs" / "images" / "growth.svg"

TITLE: Final = "Growth: the cost compared with the first point"
DESCRIPTION: Final = (
    "Four charts: of followers, streams, facts and bytes a row. Each has a line for each figure, on"
    " logarithmic axes: a level line means that the cost stays the same. The page's tables have the numbers."
)

BEGIN: Final = "<!-- Written by scripts/growth-page from growth.json. -->\n"
END: Final = "<!-- End of what scripts/growth-page writes. -->\n"

Axes = dict[str, list[Point]]
"""The points by axis, in the order in which they were measured."""


def main() -> int:
    """Write both."""
    source = RESULTS.read_text("utf-8")
    axes = read(source)
    PAGE.write_text(with_tables(PAGE.read_text("utf-8"), tables(axes)), "utf-8")
    PICTURE.write_text(f"{draw(axes)}<!-- {checksum(source)} -->\n", "utf-8")
    return 0


def read(source: str) -> Axes:
    """Parse what the benchmark printed."""
    axes: Axes = {}
    for point in msgspec.json.decode(source, type=dict[str, list[Point]])["growth"]:
        axes.setdefault(point.axis, []).append(point)
    return axes


def with_tables(page: str, text: str) -> str:
    """Return the page with this text between the comments."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def tables(axes: Axes) -> str:
    """Return a table in Markdown for each axis, followed by what was not measured there."""
    return "\n".join(line for points in axes.values() for line in _table(points))


def _table(points: Sequence[Point]) -> Iterator[str]:
    places = list(dict.fromkeys(one.at for one in points))
    cells = {(one.figure, one.at): one for one in points}
    yield f"| {points[0].axis} | {' | '.join(f'{at:,}' for at in places)} | |"
    yield "|---|" + "---:|" * len(places) + "---|"
    for figure, unit in dict.fromkeys((one.figure, one.unit) for one in points if one.figure):
        row = " | ".join(_cell(cells.get((figure, at))) for at in places)
        yield f"| {figure} | {row} | {unit} |"
    yield ""
    missing: dict[str, list[str]] = {}
    for one in points:
        if one.value is None:
            missing.setdefault(one.note, []).append(f"{one.at:,}" + f" ({one.figure})" * bool(one.figure))
    for why, what in missing.items():
        yield f"{', '.join(what)}: {why}.\n"


def _cell(point: Point | None) -> str:
    if point is None or point.value is None:
        return "-"
    # The first point says nothing about itself.
    return number(point.value) + f" ({point.note})" * (point.of_first not in (None, 1.0))


def draw(axes: Axes) -> str:
    """Draw a chart for each axis, and return the SVG."""
    from matplotlib import style
    from matplotlib.figure import Figure

    from synrepl.pipeline.report.charts import STYLE

    with style.context(STYLE):
        figure = Figure(figsize=(10.6, 9))
        for chart, (name, points) in zip(figure.subplots(2, 2).flat, axes.items(), strict=True):
            _draw(chart, name, points)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _accessible(out.getvalue())


def _draw(chart: Any, name: str, points: Sequence[Point]) -> None:
    from synrepl.pipeline.report.charts import COLORS

    for place, figure in enumerate(dict.fromkeys(one.figure for one in points)):
        measured = [one for one in points if one.figure == figure and one.of_first is not None]
        line = "o-" if place < len(COLORS) else "o--"
        if measured:
            chart.plot([one.at for one in measured], [one.of_first for one in measured], line, label=figure)
    chart.set(xscale="log", yscale="log", title=name, ylabel="x of the first point")
    low, high = chart.get_ylim()
    chart.set(ylim=(min(low, 0.1), max(high, 10)))
    places = sorted({one.at for one in points})
    chart.set_xticks(places, [f"{at:,}" for at in places])
    chart.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    chart.minorticks_off()
    chart.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=7)


def _accessible(svg: str) -> str:
    """Give the picture a title, a description, a background for dark pages, and a font of the reader's."""
    head, _, body = svg.partition("<svg")[2].partition(">")
    body = re.sub(r"(?s)<metadata>.*?</metadata>", "", body)
    body = re.sub(r"'?DejaVu Sans'?(?:, [^;\"]*)?", "sans-serif", body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    return (
        f'<svg{head} style="background: white" role="img" aria-labelledby="title desc">\n'
        f'<title id="title">{escape(TITLE)}</title>\n<desc id="desc">{escape(DESCRIPTION)}</desc>{body}'
    )


if __name__ == "__main__":
    sys.exit(main())
