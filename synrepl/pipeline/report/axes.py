"""Figures, axes and legends of plots."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from synrepl.html.humanize import number, shortened, span
from synrepl.pipeline.report.counts import Bins
from synrepl.pipeline.report.style import Size

__all__ = [
    "DAY",
    "edges_of",
    "few_ticks",
    "figure_of",
    "legend_of",
    "moment_of",
    "seconds_axis",
    "short",
    "time_axis",
    "unit_of",
]

DAY: Final = 86_400


def figure_of(wanted: Size, wide: float, narrow: float, **grid: Any) -> tuple[Any, Any]:
    """Create a figure without pyplot, which would keep it open."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wanted.width, wide if wanted.is_wide else narrow))
    ratios = grid.pop("height_ratios", None)
    return figure, figure.subplots(**grid, gridspec_kw={"height_ratios": ratios} if ratios else None)


def legend_of(
    figure: Any, handles: Sequence[Any], labels: Sequence[str], wanted: Size, *, columns: int | None = None
) -> Any:
    """Place the legend below the plot, at full width; long names are shortened."""
    names = [shortened(label, 34 if wanted.is_wide else 22) for label in labels]
    return figure.legend(
        handles,
        names,
        loc="outside lower left",
        ncols=columns or min(len(names), 4 if wanted.is_wide else 2),
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.4,
        borderaxespad=0.2,
    )


def time_axis(axes: Any, bins: Bins, wanted: Size, *, columns: int = 1) -> None:
    """Set up the time axis in UTC, with ticks for `columns` plots in a row."""
    from matplotlib import dates

    # Untyped.
    untyped: Any = dates
    axes.set_xlim(moment_of(bins.first), moment_of(bins.first + bins.count * bins.width))
    most = (12 if wanted.is_wide else 6) // columns
    locator = untyped.AutoDateLocator(minticks=3, maxticks=max(4, most), tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator, tz=UTC, show_offset=False))
    axes.set_xlabel("UTC")


def seconds_axis(axes: Any, least: float, most: float) -> None:
    """Set up a logarithmic axis of durations, from milliseconds to a year."""
    from matplotlib.ticker import NullLocator

    marks = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, DAY, 7 * DAY, 28 * DAY, 365 * DAY)
    axes.set_yscale("log")
    axes.set_ylim(least, most * 1.5)
    shown = [value for value in marks if least <= value <= most * 1.5]
    axes.set_yticks(shown)
    axes.set_yticklabels([span(value) for value in shown])
    axes.yaxis.set_minor_locator(NullLocator())


def few_ticks(count: int) -> Any:
    """Return a locator of at most `count` ticks at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count, integer=True)


def edges_of(bins: Bins) -> list[Any]:
    """Return the edges of the bins."""
    from matplotlib import dates

    untyped: Any = dates
    moments = [*bins.starts, bins.first + bins.count * bins.width]
    return [untyped.date2num(moment_of(moment)) for moment in moments]


def moment_of(seconds: float) -> datetime:
    """Convert Unix seconds."""
    return datetime.fromtimestamp(seconds, UTC)


def unit_of(most_per_second: float) -> tuple[str, float]:
    """Return the shortest unit in which the maximum is at least 2, and its factor."""
    for unit, factor in (("second", 1.0), ("minute", 60.0)):
        if most_per_second * factor >= 2:
            return unit, factor
    return "hour", 3600.0


def short(value: float) -> str:
    """Format a count with few digits: 12 k, 3.4 M."""
    for unit, of in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * of:
            return f"{value / of:.3g} {unit}"
    return number(value)
