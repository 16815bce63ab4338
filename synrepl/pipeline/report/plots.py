"""The charts of a report, from its measurements. A chart without data is left out."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from synrepl.html.humanize import number, size
from synrepl.pipeline.report.charts import (
    ACCENT,
    ALARM,
    COLORS,
    LIGHT,
    OTHER,
    Picture,
    Plot,
    Series,
    bars,
    draw,
    heat_map,
    over_time,
)
from synrepl.pipeline.report.counts import DAY
from synrepl.pipeline.report.measurement import Measurements

__all__ = ["PLOTS", "pictures"]

PANELS: Final = 6
ROWS: Final = 62
"""Maximum rows of the heat map; with more days, several share a row."""


def pictures(measured: Measurements) -> dict[str, Picture]:
    """Return all charts with data, by name."""
    if measured.covers is None:
        return {}
    plots = {name: (label, plot(measured)) for name, (label, plot) in PLOTS.items()}
    return {name: draw(name, label, plot) for name, (label, plot) in plots.items() if plot is not None}


def _rows_over_time(measured: Measurements, kind: str) -> Plot | None:
    """Return the rows by `stream` or `writer`; those beyond the colors are one series."""
    bins = measured.bins
    counts: dict[str, list[float]] = defaultdict(lambda: [0.0] * bins.count)
    for row in measured.over_time:
        counts[row[kind]][row["bin"]] += row["rows"] / bins.width
    names = measured.streams() if kind == "stream" else measured.writers()
    shown = [(name, counts[name], color) for name, color in zip(names, COLORS, strict=False)]
    if rest := names[len(COLORS) :]:
        shown.append((f"{len(rest)} more", _sum([counts[name] for name in rest]), OTHER))
    most = max(_sum([values for _, values, _ in shown]), default=0.0)
    if not most:
        return None
    unit, factor = next(
        (found for found in (("second", 1), ("minute", 60)) if most * found[1] >= 2), ("hour", 3600)
    )
    series = [Series(name, [value * factor for value in values], color) for name, values, color in shown]
    return over_time([("", series)], bins, label=f"rows per {unit}", style="stacked")


def _archive_lag(measured: Measurements) -> Plot | None:
    found = [one for one in measured.arrivals if one.seconds >= 0]
    if not found:
        return None
    lags = Series("lag", [max(one.seconds, 0.001) for one in found], ACCENT)
    at = [one.last_at_ms / 1000 for one in found]
    return over_time([("", [lags])], measured.bins, label="archive lag (log scale)", style="points", at=at)


def _silence(measured: Measurements) -> Plot | None:
    panels: dict[str, list[Series]] = defaultdict(list)
    # A writer has the same color in all charts.
    colors = dict(zip(measured.writers(), COLORS, strict=False))
    least = max(measured.bins.width / 2, 1.0)
    for one in sorted(measured.lags, key=lambda one: -one.silent_most):
        name = one.writer if one.writer in colors else "others"
        values = [None if value is None else max(value, least) for value in one.silent]
        panels[one.stream].append(Series(name, values, colors.get(one.writer, OTHER)))
    if not panels:
        return None
    label = "since the last fact (log scale)"
    return over_time(list(panels.items())[:PANELS], measured.bins, label=label, style="lines", columns=2)


def _hours(measured: Measurements) -> Plot | None:
    if not measured.hours:
        return None
    is_hourly = measured.hours_width == 3600
    line, cell = (DAY, 3600) if is_hourly else (3600, 60)
    first, last = (measured.hours[position]["at"] // line for position in (0, -1))
    days_a_row = -(-(last - first + 1) // ROWS)
    rows = [[0.0] * (line // cell) for _ in range((last - first) // days_a_row + 1)]
    for row in measured.hours:
        line_of = rows[(row["at"] // line - first) // days_a_row]
        line_of[row["at"] % line // cell] += row["facts"] / days_a_row
    names = [
        datetime.fromtimestamp((first + position * days_a_row) * line, UTC).strftime(
            "%a %d %b" if is_hourly else "%H:00"
        )
        for position in range(len(rows))
    ]
    unit = f"facts per {'hour' if is_hourly else 'minute'}"
    if days_a_row > 1:
        unit += f", average of {days_a_row} {'days' if is_hourly else 'hours'}"
    label = "hour of the day, UTC" if is_hourly else "minute of the hour, UTC"
    return heat_map(list(zip(names, rows, strict=True)), label=label, unit=unit)


def _sizes(measured: Measurements) -> Plot | None:
    panels = []
    for column, title, text in (("bytes", "bytes per fact", size), ("rows", "rows per fact", number)):
        counts: dict[int, int] = defaultdict(int)
        for row in measured.spread:
            counts[row[column]] += row["facts"]
        if counts:
            powers = range(min(counts), max(counts) + 1)
            names = [f"from {text(2**power).replace('.0', '')}" for power in powers]
            panels.append((title, names, [Series("facts", [counts[power] for power in powers], ACCENT)]))
    return bars(panels, label="facts (log scale)", log=10, formatter=number) if panels else None


def _percentiles(measured: Measurements) -> Plot | None:
    found = sorted(measured.sizes, key=lambda row: -row["bytes_most"])[:20]
    if not found:
        return None
    series = [
        Series("largest", [row["bytes_most"] for row in found], OTHER),
        Series("99 % are smaller", [row["bytes"][2] for row in found], LIGHT),
        Series("median", [row["bytes"][0] for row in found], ACCENT),
    ]
    panel = ("", [row["stream"] for row in found], series)
    label = "bytes per fact (log scale)"
    return bars([panel], label=label, log=2, formatter=lambda value: size(value).replace(".0", ""))


def _caches(measured: Measurements) -> Plot | None:
    if measured.invalidations is None or not measured.invalidations.caches:
        return None
    found = measured.invalidations.caches[: measured.top]
    series = [
        Series("of an entry", [row["invalidations"] - row["whole"] for row in found], ACCENT),
        Series("of the whole cache", [row["whole"] for row in found], ALARM),
    ]
    return bars([("", [row["cache"] for row in found], series)], label="invalidations")


def _invalidations(measured: Measurements) -> Plot | None:
    if measured.invalidations is None or not measured.invalidations.minutes:
        return None
    bins = measured.minutes
    counts: dict[str, list[float]] = defaultdict(lambda: [0.0] * bins.count)
    for row in measured.over_time:
        if row["stream"] == "caches":
            second = measured.bins.first + row["bin"] * measured.bins.width
            counts["facts"][max(0, bins.index(second))] += row["facts"] * 60 / bins.width
    for row in measured.invalidations.minutes:
        for name, count in (
            ("invalidations", row["keyed"] + row["whole"]),
            ("rows", row["rows"]),
            ("of whole caches", row["whole"]),
        ):
            counts[name][row["bin"]] = count * 60 / bins.width
    parts = [
        Series(name, counts[name], color)
        for name, color in zip(("invalidations", "rows", "facts"), COLORS, strict=False)
    ]
    whole = Series("of whole caches", counts["of whole caches"], ALARM)
    panels = [("Invalidations, rows and facts", parts), ("Invalidations of whole caches", [whole])]
    return over_time(panels, bins, label="per minute", style="areas")


def _sum(series: Any) -> list[float]:
    return [sum(values) for values in zip(*series, strict=True)]


PLOTS: Final[Mapping[str, tuple[str, Callable[[Measurements], Plot | None]]]] = {
    "throughput": ("Rows over time, by stream", lambda measured: _rows_over_time(measured, "stream")),
    "writers": ("Rows over time, by writer", lambda measured: _rows_over_time(measured, "writer")),
    "lag": ("Archive lag of each batch", _archive_lag),
    "silence": ("Time since the last fact of each writer, by stream", _silence),
    "hours": ("Facts by time of day and day", _hours),
    "sizes": ("Number of facts by size", _sizes),
    "percentiles": ("Sizes of facts by stream", _percentiles),
    "caches": ("The caches with the most invalidations", _caches),
    "invalidations": ("Cache invalidations over time", _invalidations),
}
