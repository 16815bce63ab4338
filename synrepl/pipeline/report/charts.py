"""Charts, drawn by matplotlib: series over time, bars, and a heat map.

A chart is drawn in two widths for the page, as SVG in the colors of its theme, and as a PNG file.
matplotlib is an extra, and slow to import: only the functions that draw import it.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC
from html import escape
from typing import Any, Final

import msgspec

from synrepl.html.humanize import number, shortened, span
from synrepl.html.markup import Markup
from synrepl.pipeline.report.counts import DAY, Bins

__all__ = [
    "ACCENT",
    "ALARM",
    "COLORS",
    "LIGHT",
    "OTHER",
    "Picture",
    "Plot",
    "Series",
    "bars",
    "colors_css",
    "draw",
    "heat_map",
    "over_time",
]

INK: Final = "#1c2126"
SOFT: Final = "#59636e"
LINE: Final = "#dde2e7"
OTHER: Final = "#9aa4af"
ACCENT: Final = "#2f6fde"
LIGHT: Final = "#a9c6f7"
ALARM: Final = "#c8372d"
COLORS: Final = ("#2f6fde", "#e8772e", "#17936b", "#b4489c", "#d9a400", "#6a4fc9", "#5f8f1e")
"""Colors of series, ordered so that adjacent ones are distinct, also for red-green color blindness."""

DARK: Final = {
    INK: "#e4e8ec",
    SOFT: "#9aa5b1",
    LINE: "#313a43",
    OTHER: "#77828e",
    ACCENT: "#6aa0ff",
    LIGHT: "#37598f",
    ALARM: "#ff8d86",
    "#e8772e": "#f2934f",
    "#17936b": "#3fbd92",
    "#b4489c": "#d877c3",
    "#d9a400": "#e6bc3c",
    "#6a4fc9": "#a08bf0",
    "#5f8f1e": "#93c24e",
}

WIDE: Final = 10.6
NARROW: Final = 3.45
"""Widths in inches, for desktops and phones."""

SPANS: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, DAY, 7 * DAY, 28 * DAY, 365 * DAY)

Plot = Callable[[bool], Any]
"""Draws a figure; the argument is whether it is wide."""


class Series(msgspec.Struct, frozen=True):
    """Named values, None if unknown, of a color, which may have an opacity."""

    name: str
    values: Sequence[float | None]
    color: str | tuple[str, float]


class Picture(msgspec.Struct, frozen=True):
    """A drawn chart: both widths as inline SVG, and a PNG file."""

    name: str
    svg: Markup
    png: bytes

    @property
    def file(self) -> str:
        """The name of the PNG file."""
        return f"{self.name}.png"


def over_time(
    panels: Sequence[tuple[str, Sequence[Series]]],
    bins: Bins,
    *,
    label: str,
    style: str,
    at: Sequence[float] | None = None,
    columns: int = 1,
) -> Plot:
    """Return a chart of series over time, one panel below or next to the other.

    `style` is `stacked` or `areas`, by bin; or `lines` or `points`, durations in seconds on a logarithmic
    scale, at the Unix times `at` (default: the end of each bin).
    """
    edges = [second / DAY for second in (*bins.starts, bins.first + bins.count * bins.width)]
    times = edges[1:] if at is None else [second / DAY for second in at]
    known = [value for _, shown in panels for one in shown for value in one.values if value]
    least, most = min(known, default=1.0) * 0.7, max(known, default=1.0)

    def plot(is_wide: bool) -> Any:
        from matplotlib import dates

        width = columns if is_wide else 1
        lines = -(-len(panels) // width)
        height = 3.2 if len(panels) == 1 else 1.0 + 1.7 * lines
        figure, grid = _figure(is_wide, height, nrows=lines, ncols=width, sharex=True)
        untyped: Any = dates
        for axes, (title, shown) in zip(grid, panels, strict=False):
            floor = [0.0] * bins.count
            for one in shown:
                if style in ("lines", "points"):
                    values = [float("nan") if value is None else max(value, 0.001) for value in one.values]
                    drawn = {"linestyle": "none", "marker": "o", "markersize": 3.2}
                    axes.plot(times, values, color=one.color, **(drawn if style == "points" else {}))
                    continue
                top = [low + (value or 0.0) for low, value in zip(floor, one.values, strict=True)]
                axes.stairs(top, edges, baseline=floor, fill=True, color=one.color, linewidth=0.4)
                floor = top if style == "stacked" else floor
            if style in ("lines", "points"):
                ticks = [value for value in SPANS if least <= value <= most * 1.5]
                axes.set_yscale("log")
                axes.set_ylim(least, most * 1.5)
                axes.set_yticks(ticks, [span(value) for value in ticks])
            else:
                axes.set_ylim(bottom=0)
                axes.yaxis.set_major_formatter(lambda value, _: _short(value))
            axes.minorticks_off()
            axes.set_title(shortened(title, 40))
            axes.set_xlim(edges[0], edges[-1])
            locator = untyped.AutoDateLocator(UTC, 3, max(4, (12 if is_wide else 6) // width))
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator, tz=UTC, show_offset=False))
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        figure.supylabel(label, fontsize=8.5, color=SOFT)
        for axes in grid[(lines - 1) * width :]:
            axes.set_xlabel("UTC")
        _legend(figure, [one for _, shown in panels for one in shown], is_wide)
        return figure

    return plot


def bars(
    panels: Sequence[tuple[str, Sequence[str], Sequence[Series]]],
    *,
    label: str,
    log: int = 0,
    formatter: Callable[[float], str] | None = None,
) -> Plot:
    """Return a chart of horizontal bars: panels of a title, the names of the bars, and their series.

    Series are stacked. On a logarithmic scale, of the base `log`, they are drawn over each other.
    """
    shape = formatter or _short

    def plot(is_wide: bool) -> Any:
        counts = [len(names) for _, names, _ in panels]
        is_above = not is_wide and any(len(name) > 12 for _, names, _ in panels for name in names)
        height = 1.2 + (max(counts) if is_wide else sum(counts)) * (0.36 if is_above else 0.25)
        size = (1, len(panels)) if is_wide else (len(panels), 1)
        figure, grid = _figure(is_wide, height + 0.4 * (size[0] - 1), nrows=size[0], ncols=size[1])
        for axes, (title, names, shown) in zip(grid, panels, strict=True):
            floor = [0.0] * len(names)
            for one in shown:
                values = [value or 0.0 for value in one.values]
                axes.barh(range(len(names)), values, 0.42 if is_above else 0.72, floor, color=one.color)
                floor = floor if log else [low + value for low, value in zip(floor, values, strict=True)]
            # On a phone there is no room for long names next to the bars.
            axes.set_yticks(range(len(names)), [] if is_above else [shortened(name, 62) for name in names])
            for row, name in enumerate(names if is_above else ()):
                axes.annotate(shortened(name, 48), (0, row - 0.32), xycoords=("axes fraction", "data"))
            axes.set_ylim(len(names) - 0.4, -1.0 if is_above else -0.6)
            if log:
                axes.set_xscale("log", base=log)
                axes.set_xlim(left=0.7)
            else:
                axes.locator_params(axis="x", nbins=5, integer=True)
            axes.xaxis.set_major_formatter(lambda value, _: shape(value))
            axes.minorticks_off()
            axes.grid(visible=False, axis="y")
            axes.grid(visible=True, axis="x")
            axes.set_title(title)
            axes.set_xlabel(label)
        _legend(figure, [one for _, _, shown in panels for one in shown], is_wide)
        return figure

    return plot


def heat_map(rows: Sequence[tuple[str, Sequence[float]]], *, label: str, unit: str) -> Plot:
    """Return a chart of named rows of cells, the darker the higher the value; cells of 0 are blank."""
    most = max(max(values) for _, values in rows)
    width = len(rows[0][1])

    def plot(is_wide: bool) -> Any:
        figure, (axes,) = _figure(is_wide, 0.9 + max(len(rows), 2) * (0.3 if len(rows) < 10 else 0.17))
        cells = [(x, y, value) for y, (_, row) in enumerate(rows) for x, value in enumerate(row) if value]
        x, y, values = zip(*cells, strict=True)
        shades = [(ACCENT, _shade(value / most)) for value in values]
        axes.bar(x, 0.92, 0.92, [row - 0.46 for row in y], color=shades)
        axes.set_xlim(-0.5, width - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(0, width, max(1, width // (24 if is_wide else 8))))
        skip = -(-len(rows) // 31)
        axes.set_yticks(range(0, len(rows), skip), [name for name, _ in rows[::skip]])
        axes.set_xlabel(label)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        shown = [
            Series(f"{max(1, round(share * most)):,}", (), (ACCENT, _shade(share)))
            for share in (0.01, 0.25, 0.5, 0.75, 1.0)
        ]
        _legend(figure, shown, is_wide, columns=5, title=unit)
        return figure

    return plot


def draw(name: str, label: str, plot: Plot) -> Picture:
    """Draw a chart. `label` is the text alternative."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        # Names may have characters that the font of the PNG lacks.
        warnings.simplefilter("ignore", UserWarning)
        _set_style(mpl.rc)
        svgs = []
        for kind, is_wide in (("wide", True), ("narrow", False)):
            figure, svg = plot(is_wide), io.StringIO()
            figure.savefig(svg, format="svg", transparent=True)
            svgs.append(_inline(svg.getvalue(), f"{name}-{kind}", kind, label))
        png = io.BytesIO()
        plot(True).savefig(png, format="png", dpi=144, facecolor="white")
    return Picture(name, Markup("".join(svgs)), png.getvalue())


def colors_css() -> str:
    """Return the palette of both themes as CSS variables."""
    light = ";".join(f"--c{color[1:]}:{color}" for color in DARK)
    dark = ";".join(f"--c{color[1:]}:{other}" for color, other in DARK.items())
    return f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _figure(is_wide: bool, height: float, **grid: Any) -> tuple[Any, list[Any]]:
    """Return a new figure, without pyplot (which would keep it open), and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE if is_wide else NARROW, height))
    return figure, list(figure.subplots(squeeze=False, **grid).flat)


def _legend(
    figure: Any, shown: Sequence[Series], is_wide: bool, *, columns: int | None = None, title: str = ""
) -> None:
    """Place the legend below the chart, each name once; without it if there is only one."""
    from matplotlib.patches import Patch

    colors = {one.name: one.color for one in shown}
    if len(colors) > 1:
        figure.legend(
            [Patch(color=color) for color in colors.values()],
            [shortened(name, 34 if is_wide else 22) for name in colors],
            loc="outside lower left",
            ncols=columns or min(len(colors), 4 if is_wide else 2),
            handlelength=1.2,
            columnspacing=1.4,
            title=title or None,
            alignment="left",
            title_fontsize=8.5,
        )


def _set_style(rc: Callable[..., None]) -> None:
    """Set the style. Names are never read as formulas of TeX."""
    rc("text", parse_math=False, color=INK)
    rc("svg", fonttype="none", hashsalt="synrepl")
    rc("font", family="DejaVu Sans", size=8.5)
    rc("axes", labelcolor=SOFT, labelsize=8.5, edgecolor=LINE, facecolor="none", axisbelow=True, grid=True)
    rc("axes", titlesize=9.5, titleweight="bold", titlelocation="left", titlecolor=INK)
    rc("axes.spines", top=False, right=False, left=False)
    rc("axes.grid", axis="y")
    rc("grid", color=LINE, linewidth=0.7)
    rc(("xtick", "ytick"), color=LINE, labelcolor=SOFT, labelsize=8.5)
    rc("ytick.major", size=0)
    rc("lines", linewidth=1.2, solid_capstyle="round")
    rc("legend", frameon=False, fontsize=8.5, labelcolor=INK)
    rc("figure.constrained_layout", use=True)


def _inline(svg: str, prefix: str, kind: str, label: str) -> Markup:
    """Return an SVG of matplotlib for inline use, with the colors of the page and unique ids."""
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    inner = svg[svg.index(">", svg.index("<svg")) + 1 :]
    inner = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->\s*", "", inner, flags=re.DOTALL)
    inner = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}-\1"', inner)
    inner = re.sub(r'href="#([^"]*)"', rf'href="#{prefix}-\1"', inner)
    inner = re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}-\1)", inner)
    inner = re.sub(r"'DejaVu Sans'(?:, [^;\"]*)?", "system-ui,sans-serif", inner)
    for color in DARK:
        inner = inner.replace(f": {color}", f": var(--c{color[1:]})")
    inner = re.sub(r"\n\s*", "\n", inner)
    return Markup(f'<svg class="{kind}" viewBox="{box[1]}" role="img" aria-label="{escape(label)}">{inner}')


def _shade(share: float) -> float:
    return 0.06 + 0.94 * share


def _short(value: float) -> str:
    """Format a count with few digits: 12 k, 3.4 M."""
    for unit, of in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * of:
            return f"{value / of:.3g} {unit}"
    return number(value)
