"""Style of plots: one palette for light, dark and print, and figures of two widths."""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from synrepl.html.markup import Markup

__all__ = [
    "ACCENT",
    "ALARM",
    "INK",
    "LINE",
    "OTHER",
    "SERIES",
    "SOFT",
    "Picture",
    "Size",
    "colors_css",
    "draw",
]

INK: Final = "#1c2126"
SOFT: Final = "#59636e"
LINE: Final = "#dde2e7"
OTHER: Final = "#9aa4af"
ACCENT: Final = "#2f6fde"
ALARM: Final = "#c8372d"
SERIES: Final = ("#2f6fde", "#e8772e", "#17936b", "#b4489c", "#d9a400", "#6a4fc9", "#5f8f1e")
"""Ordered so that adjacent colors are distinct, also for red-green color blindness."""

DARK: Final = {
    INK: "#e4e8ec",
    SOFT: "#9aa5b1",
    LINE: "#313a43",
    OTHER: "#77828e",
    ACCENT: "#6aa0ff",
    ALARM: "#ff8d86",
    "#e8772e": "#f2934f",
    "#17936b": "#3fbd92",
    "#b4489c": "#d877c3",
    "#d9a400": "#e6bc3c",
    "#6a4fc9": "#a08bf0",
    "#5f8f1e": "#93c24e",
}

FONT: Final = "system-ui,sans-serif"
DPI: Final = 144


class Size(msgspec.Struct, frozen=True):
    """A figure width in inches; `is_wide` for desktops, otherwise for phones."""

    width: float
    is_wide: bool


WIDE: Final = Size(10.6, True)
NARROW: Final = Size(3.45, False)


class Picture(msgspec.Struct, frozen=True):
    """A plot: inline in both widths, and as a PNG file."""

    name: str
    wide: Markup
    narrow: Markup
    png: bytes

    @property
    def file(self) -> str:
        """The name of the PNG file."""
        return f"{self.name}.png"


def draw(name: str, label: str, plot: Callable[[Size], Any]) -> Picture:
    """Draw `plot` in each width. `label` is the text alternative."""
    with _style():
        wide = plot(WIDE)
        png, svg = io.BytesIO(), io.BytesIO()
        wide.savefig(png, format="png", dpi=DPI, facecolor="white")
        # The layout is final here.
        wide.set_layout_engine("none")
        wide.savefig(svg, format="svg", transparent=True)
        shown = _inline(svg.getvalue().decode(), f"{name}-w", label)
        small = io.BytesIO()
        plot(NARROW).savefig(small, format="svg", transparent=True)
        return Picture(name, shown, _inline(small.getvalue().decode(), f"{name}-n", label), png.getvalue())


def colors_css() -> str:
    """Return the palette as CSS variables."""
    light = ";".join(f"--c{color[1:]}:{color}" for color in DARK)
    dark = ";".join(f"--c{color[1:]}:{other}" for color, other in DARK.items())
    return f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib as mpl

    rules: Any = {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "synrepl",
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "text.color": INK,
        "axes.labelcolor": SOFT,
        "axes.labelsize": 8.5,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": INK,
        "axes.edgecolor": LINE,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": LINE,
        "grid.linewidth": 0.7,
        "xtick.color": LINE,
        "ytick.color": LINE,
        "xtick.labelcolor": SOFT,
        "ytick.labelcolor": SOFT,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "lines.linewidth": 1.5,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "legend.labelcolor": INK,
        "figure.constrained_layout.use": True,
    }
    with mpl.rc_context(rules), warnings.catch_warnings():
        # Names may have characters that the font of the PNG lacks.
        warnings.simplefilter("ignore", UserWarning)
        yield


def _inline(svg: str, prefix: str, label: str) -> Markup:
    """Return an SVG of Matplotlib for inline use, with the colors of the page and unique ids."""
    from html import escape

    body = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="([^"]*)"', body)
    assert box is not None
    inner = body[body.index(">") + 1 :]
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL)
    inner = re.sub(r"<style.*?</style>", "", inner, count=1, flags=re.DOTALL)
    inner = re.sub(r"<!--.*?-->\s*", "", inner, flags=re.DOTALL)
    inner = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}-\1"', inner)
    inner = re.sub(r'href="#([^"]*)"', rf'href="#{prefix}-\1"', inner)
    inner = re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}-\1)", inner)
    inner = re.sub(r"'DejaVu Sans'(?:, [^;\"]*)?", FONT, inner)
    for color in DARK:
        inner = inner.replace(f": {color}", f": var(--c{color[1:]})")
    inner = re.sub(r"\n\s*", "\n", inner)
    return Markup(f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(label)}">{inner}')
