"""The charts of a report, drawn by matplotlib. A chart without data is left out.

A chart is drawn in two widths for the page, as SVG in the colors of its theme, and as a PNG file.
matplotlib is an extra, and slow to import: only the functions that draw import it.
"""

import io
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from synrepl.html.humanize import number, shortened, size, span
from synrepl.pipeline.report.counts import DAY, Bins
from synrepl.pipeline.report.measurement import Measurements, lag_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT_FORMATS: Final = ["%Y", "%b", "%d", "%H:%M", "%H:%M", "%H:%M:%S"]
"""The labels of a time axis, from years to seconds: a second alone would not say of which minute."""

STYLE: Final = Path(__file__).with_name("report.mplstyle")

OTHER: Final = "#9aa4af"
ACCENT: Final = "#2f6fde"
LIGHT: Final = "#a9c6f7"
ALARM: Final = "#c8372d"
COLORS: Final = ("C0", "C1", "C2", "C3", "C4", "C5", "C6")
"""The colors of series in the style."""

WIDE: Final = 10.6
NARROW: Final = 3.45
"""Widths in inches, for desktops and phones."""

SPANS: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, DAY, 7 * DAY, 28 * DAY, 365 * DAY)
"""Ticks of durations, in seconds."""

PANELS: Final = 6
ROWS: Final = 62
"""Maximum rows of the heat map; with more days, several share a row."""

BARS: Final = 20

Series = Mapping[str, tuple[str, Any]]
"""Colors and values by name."""

Bars = tuple[str, Sequence[str], Series]
"""A panel of bars: its title, the names of the bars, and their values."""


class Picture(msgspec.Struct, frozen=True):
    """A drawn chart: both widths as inline SVG, and a PNG file."""

    svg: str
    png: bytes


def pictures(measured: Measurements) -> dict[str, Picture]:
    """Draw all charts with data, by name."""
    if measured.covers is None:
        return {}
    from matplotlib import style
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    drawn = {}
    with style.context(STYLE), warnings.catch_warnings():
        # Names may have characters that the font of the PNG lacks.
        warnings.simplefilter("ignore", UserWarning)
        for name, (label, chart) in CHARTS.items():
            wide, narrow = chart(measured, True), chart(measured, False)
            if wide is None or narrow is None:
                continue
            for figure in (wide, narrow):
                # Not by the style: each file of the figure would be laid out, and drawn twice for that.
                ConstrainedLayoutEngine().execute(figure)
            svg = _inline(wide, name, "wide", label) + _inline(narrow, name, "narrow", label)
            png = io.BytesIO()
            wide.savefig(png, format="png", dpi=144, facecolor="white")
            drawn[name] = Picture(svg, png.getvalue())
            # Its parts refer to each other: the garbage collector would free them much later.
            for figure in (wide, narrow):
                figure.clear()
    return drawn


def _throughput(measured: Measurements, is_wide: bool, kind: str) -> "Figure | None":
    """Draw the rows by `stream` or `writer`, stacked; names beyond the number of colors are one series."""
    bins, names = measured.bins, measured.names(kind)
    rows = np.zeros((len(names), bins.count))
    places = {name: place for place, name in enumerate(names)}
    for counted in measured.over_time:
        rows[places[counted[kind]], counted["bin"]] += counted["rows"]
    rows /= bins.width
    most = rows.sum(axis=0).max(initial=0)
    if not most:
        return None
    units = {"second": 1, "minute": 60, "hour": 3600}
    unit = next((unit for unit, factor in units.items() if most * factor >= 2), "hour")
    rows *= units[unit]
    series = {name: (color, one) for name, color, one in zip(names, COLORS, rows, strict=False)}
    if rest := names[len(COLORS) :]:
        series[f"{len(rest)} more"] = OTHER, rows[len(COLORS) :].sum(axis=0)
    return _steps(is_wide, bins, {"": series}, f"rows per {unit}", is_stacked=True)


def _archive_lag(measured: Measurements, is_wide: bool) -> "Figure | None":
    points = [(one.last_at_ms / 1000 / DAY, lag_seconds(one)) for one in measured.batches]
    points = [(at, max(lag, 0.001)) for at, lag in points if lag >= 0]
    if not points:
        return None
    figure, (axes,) = _over_time(is_wide, measured.bins, [""], "archive lag (log scale)")
    axes.plot(*zip(*points, strict=True), "o", color=ACCENT)
    _log_seconds([axes], [lag for _, lag in points])
    return figure


def _silence(measured: Measurements, is_wide: bool) -> "Figure | None":
    if not measured.lags:
        return None
    bins, panels = measured.bins, defaultdict(list)
    for one in sorted(measured.lags, key=lambda one: -one.silent_most):
        panels[one.stream].append(one)
    titles = list(panels)[:PANELS]
    figure, grid = _over_time(is_wide, bins, titles, "since the last fact (log scale)", columns=2)
    # A writer has the same color in all charts.
    colors = dict(zip(measured.names("writer"), COLORS, strict=False))
    least, known, legend = max(bins.width / 2, 1.0), list[float](), dict[str, str]()
    for axes, title in zip(grid, titles, strict=True):
        for one in panels[title]:
            values = [None if value is None else max(value, least) for value in one.silent]
            known += filter(None, values)
            color = colors.get(one.writer, OTHER)
            legend[one.writer if one.writer in colors else "others"] = color
            axes.plot(_edges(bins)[1:], values, color=color)
    _log_seconds(grid, known)
    _legend(figure, legend, is_wide)
    return figure


def _invalidations(measured: Measurements, is_wide: bool) -> "Figure | None":
    import numpy as np

    if measured.invalidations is None or not measured.invalidations.minutes:
        return None
    bins = measured.minutes
    entries, rows, facts, whole = np.zeros((4, bins.count))
    for row in measured.over_time:
        if row["stream"] == "caches":
            facts[max(0, bins.index(measured.bins.starts[row["bin"]]))] += row["facts"] * 60 / bins.width
    for row in measured.invalidations.minutes:
        counts = row["keyed"], row["rows"], row["whole"]
        entries[row["bin"]], rows[row["bin"]], whole[row["bin"]] = (n * 60 / bins.width for n in counts)
    panels: dict[str, Series] = {
        "Invalidations, rows and facts": {
            "invalidations": (COLORS[0], entries + whole),
            "rows": (COLORS[1], rows),
            "facts": (COLORS[2], facts),
        },
        "Invalidations of whole caches": {"of whole caches": (ALARM, whole)},
    }
    return _steps(is_wide, bins, panels, "per minute")


def _hours(measured: Measurements, is_wide: bool) -> "Figure | None":
    """Draw a heat map of the facts by hour and day, or by minute and hour; cells of 0 are blank."""
    if not measured.hours:
        return None
    is_hourly = measured.hours_width == 3600
    line, cell = (DAY, 3600) if is_hourly else (3600, 60)
    first, last = (measured.hours[index]["at"] // line for index in (0, -1))
    lines_a_row = -(-(last - first + 1) // ROWS)
    count = (last - first) // lines_a_row + 1
    cells: dict[tuple[int, int], float] = defaultdict(float)
    for row in measured.hours:
        place = row["at"] % line // cell, (row["at"] // line - first) // lines_a_row
        cells[place] += row["facts"] / lines_a_row
    most = max(cells.values())

    figure, (axes,) = _figure(is_wide, 0.9 + max(count, 2) * (0.3 if count < 10 else 0.17))
    x, y = zip(*cells, strict=True)
    shades = [_shade(value / most) for value in cells.values()]
    axes.bar(x, 0.92, 0.92, [row - 0.46 for row in y], color=shades)
    width = line // cell
    axes.set(xlim=(-0.5, width - 0.5), ylim=(count - 0.5, -0.5))
    axes.set_xticks(range(0, width, max(1, width // (24 if is_wide else 8))))
    ticks = range(0, count, -(-count // 31))
    begins = [datetime.fromtimestamp((first + row * lines_a_row) * line, UTC) for row in ticks]
    axes.set_yticks(ticks, [f"{begin:%a %d %b}" if is_hourly else f"{begin:%H:00}" for begin in begins])
    axes.set_xlabel("hour of the day, UTC" if is_hourly else "minute of the hour, UTC")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    unit = f"facts per {'hour' if is_hourly else 'minute'}"
    if lines_a_row > 1:
        unit += f", average of {lines_a_row} {'days' if is_hourly else 'hours'}"
    legend = {f"{max(1, round(share * most)):,}": _shade(share) for share in (0.01, 0.25, 0.5, 0.75, 1.0)}
    _legend(figure, legend, is_wide, columns=5, title=unit)
    return figure


def _sizes(measured: Measurements, is_wide: bool) -> "Figure | None":
    panels: list[Bars] = []
    for column, title, text in (("bytes", "bytes per fact", size), ("rows", "rows per fact", number)):
        counts: dict[int, int] = defaultdict(int)
        for row in measured.spread:
            counts[row[column]] += row["facts"]
        if counts:
            powers = range(min(counts), max(counts) + 1)
            names = [f"from {text(2**power).replace('.0', '')}" for power in powers]
            panels.append((title, names, {"facts": (ACCENT, [counts[power] for power in powers])}))
    return _bars(is_wide, panels, "facts (log scale)", base=10, text=number)


def _percentiles(measured: Measurements, is_wide: bool) -> "Figure | None":
    found = measured.sizes[:BARS]
    series = {
        "largest": (OTHER, [row["bytes_most"] for row in found]),
        "99 % are smaller": (LIGHT, [row["bytes_p99"] for row in found]),
        "median": (ACCENT, [row["bytes_median"] for row in found]),
    }
    panels = [("", [row["stream"] for row in found], series)]
    label = "bytes per fact (log scale)"
    return _bars(is_wide, panels, label, base=2, text=lambda value: size(value).replace(".0", ""))


def _caches(measured: Measurements, is_wide: bool) -> "Figure | None":
    found = measured.invalidations.caches[: measured.top] if measured.invalidations is not None else []
    series = {
        "of an entry": (ACCENT, [row["invalidations"] - row["whole"] for row in found]),
        "of the whole cache": (ALARM, [row["whole"] for row in found]),
    }
    return _bars(is_wide, [("", [row["cache"] for row in found], series)], "invalidations")


def _bars(
    is_wide: bool,
    panels: Sequence[Bars],
    label: str,
    *,
    base: int = 0,
    text: Callable[[float], str] | None = None,
) -> "Figure | None":
    """Draw horizontal bars. Series are stacked; with a `base`, on a logarithmic scale, they overlap."""
    counts = [len(names) for _, names, _ in panels]
    if not any(counts):
        return None
    # On a phone there is no room for long names next to the bars.
    is_above = not is_wide and any(len(name) > 12 for _, names, _ in panels for name in names)
    rows, columns = (1, len(panels)) if is_wide else (len(panels), 1)
    height = 0.8 + 0.4 * rows + (max(counts) if is_wide else sum(counts)) * (0.36 if is_above else 0.25)
    figure, grid = _figure(is_wide, height, nrows=rows, ncols=columns)
    for axes, (title, names, series) in zip(grid, panels, strict=True):
        places, floor = range(len(names)), [0.0] * len(names)
        for color, values in series.values():
            axes.barh(places, values, 0.42 if is_above else 0.72, floor, color=color)
            floor = floor if base else [low + value for low, value in zip(floor, values, strict=True)]
        axes.set_yticks(places, [] if is_above else [shortened(name, 62) for name in names])
        for row, name in enumerate(names if is_above else ()):
            axes.annotate(shortened(name, 48), (0, row - 0.32), xycoords=("axes fraction", "data"))
        axes.set_ylim(len(names) - 0.4, -1.0 if is_above else -0.6)
        if base:
            axes.set_xscale("log", base=base)
            axes.set_xlim(left=0.7)
        else:
            axes.locator_params(axis="x", nbins=5, integer=True)
        axes.xaxis.set_major_formatter(lambda value, _: (text or _short)(value))
        axes.minorticks_off()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set(title=title, xlabel=label)
    _legend(figure, _colors(series for _, _, series in panels), is_wide)
    return figure


def _steps(
    is_wide: bool, bins: Bins, panels: Mapping[str, Series], label: str, *, is_stacked: bool = False
) -> "Figure":
    """Draw filled steps over time, by the titles of their panels. Series are stacked, or overlap."""
    figure, grid = _over_time(is_wide, bins, list(panels), label)
    for axes, series in zip(grid, panels.values(), strict=True):
        floor: Any = 0
        for color, values in series.values():
            top = floor + values
            axes.stairs(top, _edges(bins), baseline=floor, fill=True, color=color, linewidth=0.4)
            floor = top if is_stacked else 0
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    _legend(figure, _colors(panels.values()), is_wide)
    return figure


def _colors(panels: Iterable[Series]) -> dict[str, str]:
    return {name: color for series in panels for name, (color, _) in series.items()}


def _over_time(
    is_wide: bool, bins: Bins, titles: Sequence[str], label: str, *, columns: int = 1
) -> "tuple[Figure, list[Any]]":
    """Return a figure with a panel of each title, below or next to each other, whose x axis is the time."""
    from matplotlib import dates

    columns = columns if is_wide else 1
    rows = -(-len(titles) // columns)
    height = 3.2 if len(titles) == 1 else 1.0 + 1.7 * rows
    figure, grid = _figure(is_wide, height, nrows=rows, ncols=columns, sharex=True)
    figure.supylabel(label, fontsize=8.5, color="#59636e")
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    for axes in grid[(rows - 1) * columns :]:
        axes.set_xlabel("UTC")
    edges, untyped = _edges(bins), dates  # type: Any, Any
    for axes, title in zip(grid, titles, strict=False):
        axes.set(title=shortened(title, 40), xlim=(edges[0], edges[-1]))
        locator = untyped.AutoDateLocator(UTC, 3, max(4, (12 if is_wide else 6) // columns))
        axes.xaxis.set_major_locator(locator)
        labels = untyped.ConciseDateFormatter(locator, UTC, SHORT_FORMATS, show_offset=False)
        axes.xaxis.set_major_formatter(labels)
    return figure, grid[: len(titles)]


def _figure(is_wide: bool, height: float, **grid: Any) -> "tuple[Figure, list[Any]]":
    """Return a new figure, without pyplot (which would keep it open), and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE if is_wide else NARROW, height))
    return figure, list(figure.subplots(squeeze=False, **grid).flat)


def _edges(bins: Bins) -> list[float]:
    """Return the edges of bins as matplotlib's dates: days since 1970."""
    return [(bins.first + index * bins.width) / DAY for index in range(bins.count + 1)]


def _log_seconds(grid: Sequence[Any], known: Sequence[float]) -> None:
    least, most = min(known, default=1.0) * 0.7, max(known, default=1.0) * 1.5
    ticks = [value for value in SPANS if least <= value <= most]
    for axes in grid:
        axes.set(yscale="log", ylim=(least, most))
        axes.set_yticks(ticks, [span(value) for value in ticks])
        axes.minorticks_off()


def _legend(
    figure: "Figure", colors: Mapping[str, Any], is_wide: bool, *, columns: int | None = None, title: str = ""
) -> None:
    """Place the legend below the chart; none for a single series."""
    from matplotlib.patches import Patch

    if len(colors) > 1:
        figure.legend(
            [Patch(color=color) for color in colors.values()],
            [shortened(name, 34 if is_wide else 22) for name in colors],
            loc="outside lower left",
            ncols=columns or min(len(colors), 4 if is_wide else 2),
            title=title or None,
            alignment="left",
        )


def _inline(figure: "Figure", name: str, kind: str, label: str) -> str:
    """Return a figure as an SVG for inline use, with unique ids, and the page's font and colors."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    head, _, inner = out.getvalue().partition("<svg")[2].partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    for pattern, new in (
        (r"(?s)<style.*?</style>|<!--.*?-->", ""),
        (r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-{kind}-"),
        (r"'DejaVu Sans'(?:, [^;\"]*)?", "system-ui,sans-serif"),
        (r": #([0-9a-f]{6})", r": var(--c\1, #\1)"),
        (r"\s*\n\s*", "\n"),
    ):
        inner = re.sub(pattern, new, inner)
    return f'<svg class="{kind}" {box[0]} role="img" aria-label="{escape(label)}">{inner}'


def _shade(share: float) -> tuple[str, float]:
    return ACCENT, 0.06 + 0.94 * share


def _short(value: float) -> str:
    """Format a count with few digits: 12 k, 3.4 M."""
    for unit, of in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * of:
            return f"{value / of:.3g} {unit}"
    return number(value)


CHARTS: Final[Mapping[str, tuple[str, Callable[[Measurements, bool], "Figure | None"]]]] = {
    "throughput": ("Rows over time, by stream", partial(_throughput, kind="stream")),
    "writers": ("Rows over time, by writer", partial(_throughput, kind="writer")),
    "lag": ("Archive lag of each batch", _archive_lag),
    "silence": ("Time since the last fact of each writer, by stream", _silence),
    "hours": ("Facts by time of day and day", _hours),
    "sizes": ("Number of facts by size", _sizes),
    "percentiles": ("Sizes of facts by stream", _percentiles),
    "caches": ("The caches with the most invalidations", _caches),
    "invalidations": ("Cache invalidations over time", _invalidations),
}
"""The charts by name, each with the text that stands for it."""
