"""Plots of a report, each a function of the measurements and a width. None if there are no data."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from synrepl.html.humanize import number, shortened, size
from synrepl.pipeline.report.axes import (
    DAY,
    edges_of,
    few_ticks,
    figure_of,
    legend_of,
    moment_of,
    seconds_axis,
    short,
    time_axis,
    unit_of,
)
from synrepl.pipeline.report.measurement import Measurements
from synrepl.pipeline.report.style import ACCENT, ALARM, LINE, OTHER, SERIES, SOFT, Picture, Size, draw

__all__ = ["pictures"]

NAMED: Final = len(SERIES)
"""Maximum number of series with their own color; the others are drawn as one."""

PANELS: Final = 6
ROWS: Final = 62
"""Maximum rows of the heat map; with more days, several share a row."""


def pictures(measured: Measurements) -> dict[str, Picture]:
    """Return all plots with data, by name."""
    if measured.covers is None:
        return {}
    made = {}
    for name, (label, plot) in PLOTS.items():
        figure = plot(measured)
        if figure is not None:
            made[name] = draw(name, label, figure)
    return made


Plot = Callable[[Size], Any]


def _by_stream(measured: Measurements) -> Plot | None:
    return _stacked(measured, "stream")


def _by_writer(measured: Measurements) -> Plot | None:
    return _stacked(measured, "writer")


def _stacked(measured: Measurements, kind: str) -> Plot | None:
    bins = measured.bins
    series: dict[str, list[float]] = defaultdict(lambda: [0.0] * bins.count)
    for row in measured.over_time:
        series[row[kind]][row["bin"]] += row["rows"] / bins.width
    names = measured.streams() if kind == "stream" else measured.writers()
    shown = [(name, series[name], SERIES[place]) for place, name in enumerate(names[:NAMED])]
    rest = names[NAMED:]
    if rest:
        summed = [sum(values) for values in zip(*(series[name] for name in rest), strict=True)]
        shown.append((f"{len(rest)} more", summed, OTHER))
    if not any(any(values) for _, values, _ in shown):
        return None
    unit, factor = unit_of(
        max(sum(values) for values in zip(*(values for _, values, _ in shown), strict=True))
    )

    def plot(wanted: Size) -> Any:
        figure, axes = figure_of(wanted, 3.2, 3.3)
        edges = edges_of(bins)
        floor = [0.0] * bins.count
        handles = []
        for _, values, color in shown:
            top = [low + value * factor for low, value in zip(floor, values, strict=True)]
            handles.append(axes.stairs(top, edges, baseline=floor, fill=True, color=color, linewidth=0.4))
            floor = top
        axes.set_ylabel(f"rows per {unit}")
        time_axis(axes, bins, wanted)
        legend_of(figure, handles, [name for name, _, _ in shown], wanted)
        return figure

    return plot


def _lag(measured: Measurements) -> Plot | None:
    found = [one for one in measured.arrivals if one.seconds >= 0]
    if not found:
        return None

    def plot(wanted: Size) -> Any:
        figure, axes = figure_of(wanted, 2.5, 2.6)
        moments = [moment_of(one.last_at_ms / 1000) for one in found]
        values = [max(one.seconds, 0.001) for one in found]
        axes.vlines(moments, min(values) * 0.7, values, color=LINE, linewidth=0.8)
        axes.plot(moments, values, linestyle="none", marker="o", markersize=3.2, color=ACCENT)
        seconds_axis(axes, min(values) * 0.7, max(values))
        axes.set_ylabel("archived after")
        time_axis(axes, measured.bins, wanted)
        return figure

    return plot


def _silence(measured: Measurements) -> Plot | None:
    found: dict[str, list[Any]] = defaultdict(list)
    for one in measured.standing:
        found[one.stream].append(one)
    if not found:
        return None
    worst = sorted(found, key=lambda stream: -max(one.silent_most for one in found[stream]))[:PANELS]
    # A writer has the same color in all plots.
    drawn = {one.writer for stream in worst for one in found[stream]}
    colors = {name: SERIES[place] for place, name in enumerate(measured.writers()[:NAMED])}
    names = [name for name in colors if name in drawn]
    rest = len(drawn) - len(names)
    bins = measured.bins
    most = max(one.silent_most for stream in worst for one in found[stream])

    def plot(wanted: Size) -> Any:
        from matplotlib.lines import Line2D

        columns = min(len(worst), 2) if wanted.is_wide else 1
        lines = -(-len(worst) // columns)
        figure, grid = figure_of(
            wanted,
            1.0 + 1.6 * lines,
            1.2 + 1.5 * lines,
            nrows=lines,
            ncols=columns,
            sharex=True,
            squeeze=False,
        )
        cells = [axes for row in grid for axes in row]
        moments = [moment_of(start + bins.width) for start in bins.starts]
        least = max(bins.width / 2, 1.0)
        for axes, stream in zip(cells, worst, strict=False):
            for one in found[stream]:
                values = [None if value is None else max(value, least) for value in one.silent]
                axes.plot(
                    moments,
                    [float("nan") if value is None else value for value in values],
                    color=colors.get(one.writer, OTHER),
                    linewidth=1.2,
                )
            axes.set_title(shortened(stream, 40))
            seconds_axis(axes, least * 0.9, max(most, least * 4))
            time_axis(axes, bins, wanted, columns=columns)
            axes.set_xlabel("")
        for axes in cells[len(worst) :]:
            axes.set_visible(False)
        figure.supylabel("since the last fact (log scale)", fontsize=8.5, color=SOFT)
        for axes in grid[-1]:
            axes.set_xlabel("UTC")
        shown = names + ([f"{rest} more"] if rest else [])
        handles = [Line2D([], [], color=colors.get(name, OTHER), linewidth=2) for name in shown]
        legend_of(figure, handles, shown, wanted)
        return figure

    return plot


def _busy(measured: Measurements) -> Plot | None:
    if not measured.hours:
        return None
    per_hour = measured.hours_width == 3600
    line, cell = (DAY, 3600) if per_hour else (3600, 60)
    first = measured.hours[0]["at"] // line
    last = measured.hours[-1]["at"] // line
    days_a_row = -(-(last - first + 1) // ROWS)
    count = (last - first) // days_a_row + 1
    values = [[0.0] * (line // cell) for _ in range(count)]
    for row in measured.hours:
        values[(row["at"] // line - first) // days_a_row][row["at"] % line // cell] += (
            row["facts"] / days_a_row
        )
    most = max(max(row) for row in values)
    starts = [datetime.fromtimestamp((first + place * days_a_row) * line, UTC) for place in range(count)]
    names = [start.strftime("%a %d %b" if per_hour else "%H:00") for start in starts]
    every = "hour" if per_hour else "minute"

    def plot(wanted: Size) -> Any:
        from matplotlib.collections import PatchCollection
        from matplotlib.colors import to_rgba
        from matplotlib.patches import Rectangle

        high = 0.9 + max(count, 2) * (0.3 if count < 10 else 0.17)
        figure, axes = figure_of(wanted, high, high + 0.15)
        full = [(x, y, value) for y, row in enumerate(values) for x, value in enumerate(row) if value]
        cells = PatchCollection(
            [Rectangle((x + 0.04, y + 0.04), 0.92, 0.92) for x, y, _ in full], linewidth=0
        )
        cells.set_facecolor([to_rgba(ACCENT, 0.06 + 0.94 * value / most) for _, _, value in full])
        cells.set_in_layout(False)
        axes.add_collection(cells, autolim=False)
        axes.set_xlim(0, line // cell)
        axes.set_ylim(count, 0)
        step = (1 if wanted.is_wide else 3) if per_hour else (5 if wanted.is_wide else 15)
        axes.set_xticks([place + 0.5 for place in range(0, line // cell, step)])
        axes.set_xticklabels([str(place) for place in range(0, line // cell, step)])
        skip = -(-count // 31)
        axes.set_yticks([place + 0.5 for place in range(0, count, skip)])
        axes.set_yticklabels(names[::skip])
        axes.set_xlabel(f"{every} of the {'day' if per_hour else 'hour'}, UTC")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)
        shares = (0.01, 0.25, 0.5, 0.75, 1.0)
        handles = [Rectangle((0, 0), 1, 1, color=ACCENT, alpha=0.06 + 0.94 * share, lw=0) for share in shares]
        labels = [number(max(1, round(share * most))) for share in shares]
        legend = legend_of(figure, handles, labels, wanted, columns=5)
        average = f", the average of {days_a_row} {'days' if per_hour else 'hours'}" if days_a_row > 1 else ""
        legend.set_title(f"facts an {every}{average}" if per_hour else f"facts a {every}{average}")
        legend.set_alignment("left")
        legend.get_title().set_fontsize(8.5)
        legend.get_title().set_color(SOFT)
        return figure

    return plot


def _sizes(measured: Measurements) -> Plot | None:
    if not measured.spread:
        return None
    of_bytes: dict[int, int] = defaultdict(int)
    of_rows: dict[int, int] = defaultdict(int)
    for row in measured.spread:
        of_bytes[row["bytes"]] += row["facts"]
        of_rows[row["rows"]] += row["facts"]

    def plot(wanted: Size) -> Any:
        lines, columns = (1, 2) if wanted.is_wide else (2, 1)
        figure, grid = figure_of(wanted, 2.7, 4.6, nrows=lines, ncols=columns, squeeze=False)
        left, right = (axes for row in grid for axes in row)
        for axes, found, title, label, name in (
            (left, of_bytes, "bytes of a fact", "size of its rows (each bar doubles it)", size),
            (right, of_rows, "rows of a fact", "rows (each bar doubles them)", number),
        ):
            places = range(min(found), max(found) + 1)
            axes.bar(places, [found.get(place, 0) for place in places], width=0.9, align="edge", color=ACCENT)
            axes.set_yscale("log")
            axes.set_ylim(0.7, max(found.values()) * 1.6)
            axes.yaxis.set_major_formatter(lambda value, _: number(value))
            step = -(-len(places) // (9 if wanted.is_wide else 6))
            ticks = list(range(places[0], places[-1] + 2, step))
            axes.set_xticks(ticks)
            axes.set_xticklabels([name(2**tick).replace(".0", "") for tick in ticks])
            axes.minorticks_off()
            axes.set_title(title)
            axes.set_xlabel(label)
            axes.set_ylabel("facts (log scale)")
        return figure

    return plot


def _percentiles(measured: Measurements) -> Plot | None:
    found = sorted(measured.sizes, key=lambda row: -row["bytes_most"])[:20]
    if not found:
        return None

    def plot(wanted: Size) -> Any:
        figure, axes = figure_of(wanted, 0.9 + 0.27 * len(found), 1.1 + 0.27 * len(found))
        for place, row in enumerate(found):
            half, _, most = row["bytes"]
            axes.plot([half, row["bytes_most"]], [place, place], color=OTHER, linewidth=1)
            axes.plot(
                [half, most], [place, place], color=ACCENT, linewidth=5, solid_capstyle="butt", alpha=0.55
            )
            axes.plot([half], [place], marker="o", markersize=6, color=ACCENT)
            axes.plot([row["bytes_most"]], [place], marker="|", markersize=8, color=OTHER)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: size(value).replace(".0", ""))
        axes.set_yticks(range(len(found)))
        axes.set_yticklabels([shortened(row["stream"], 22) for row in found])
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.minorticks_off()
        axes.set_xlabel("bytes of a fact (log scale): median, 99 %, largest")
        return figure

    return plot


def _caches(measured: Measurements) -> Plot | None:
    told = measured.invalidations
    if told is None or not told.caches:
        return None
    found = told.caches[: measured.top]

    def plot(wanted: Size) -> Any:
        figure, axes = figure_of(wanted, 0.95 + 0.23 * len(found), 1.05 + (0.36 * len(found)))
        places = range(len(found))
        keyed = [row["invalidations"] - row["whole"] for row in found]
        whole = [row["whole"] for row in found]
        high = 0.72 if wanted.is_wide else 0.42
        handles = [
            axes.barh(places, keyed, height=high, color=ACCENT),
            axes.barh(places, whole, left=keyed, height=high, color=ALARM),
        ]
        axes.set_yticks(places)
        if wanted.is_wide:
            axes.set_yticklabels([shortened(row["cache"], 62) for row in found])
        else:
            # There is no room next to the bars.
            axes.set_yticklabels([])
            for place, row in enumerate(found):
                axes.text(0, place - 0.32, shortened(row["cache"], 48), fontsize=7.5, va="bottom", ha="left")
        axes.set_ylim(len(found) - 0.4, -0.6 if wanted.is_wide else -1.0)
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.xaxis.set_major_locator(few_ticks(5))
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_xlabel("invalidations")
        legend_of(figure, handles, ["of an entry", "of the whole cache"], wanted)
        return figure

    return plot


def _minutes(measured: Measurements) -> Plot | None:
    told = measured.invalidations
    if told is None or not told.minutes:
        return None
    bins = measured.minutes
    facts = [0.0] * bins.count
    for row in measured.over_time:
        if row["stream"] == "caches":
            at = measured.bins.first + row["bin"] * measured.bins.width
            facts[max(0, bins.place(at))] += row["facts"]
    meant, rows, whole = ([0.0] * bins.count for _ in range(3))
    for row in told.minutes:
        meant[row["bin"]] = row["keyed"] + row["whole"]
        rows[row["bin"]] = row["rows"]
        whole[row["bin"]] = row["whole"]
    factor = 60 / bins.width

    def plot(wanted: Size) -> Any:
        figure, grid = figure_of(wanted, 4.0, 4.4, nrows=2, ncols=1, sharex=True, height_ratios=(2, 1))
        upper, lower = grid
        edges = edges_of(bins)
        handles = [
            axes.stairs([value * factor for value in values], edges, fill=fill, color=color, linewidth=1.2)
            for axes, values, color, fill in (
                (upper, meant, SERIES[0], True),
                (upper, rows, SERIES[1], True),
                (upper, facts, SERIES[2], True),
                (lower, whole, ALARM, True),
            )
        ]
        for axes in grid:
            axes.set_ylabel("per minute")
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: short(value))
        time_axis(lower, bins, wanted)
        names = ("invalidations", "rows that told them", "facts that held those", "whole caches (below)")
        legend_of(figure, handles, names, wanted, columns=4 if wanted.is_wide else 2)
        return figure

    return plot


PLOTS: Final[Mapping[str, tuple[str, Callable[[Measurements], Plot | None]]]] = {
    "throughput": ("Rows over time, by stream", _by_stream),
    "writers": ("Rows over time, by writer", _by_writer),
    "lag": ("How long facts waited to be archived, by batch", _lag),
    "silence": ("How long each writer had said nothing, by stream with several writers", _silence),
    "hours": ("Facts by time of day and day", _busy),
    "sizes": ("How many facts have which size", _sizes),
    "percentiles": ("Sizes of facts by stream", _percentiles),
    "caches": ("The caches with the most invalidations", _caches),
    "invalidations": ("Cache invalidations over time", _minutes),
}
