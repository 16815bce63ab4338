"""HTML elements, and the style of all pages. Text is escaped; only `Markup` is inserted as it is."""

from collections.abc import Iterable
from html import escape
from typing import Final

__all__ = ["LOOK", "Markup", "details", "element", "facts", "join", "mark", "text"]


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def text(content: object) -> Markup:
    """Escape a value, unless it is HTML. None becomes empty."""
    if isinstance(content, Markup):
        return content
    return Markup("" if content is None else escape(str(content)))


def join(parts: Iterable[object]) -> Markup:
    """Concatenate values."""
    return Markup("".join(map(text, parts)))


def element(name: str, content: object = "", **attributes: object) -> Markup:
    """Render an element. Attributes that are None are omitted; `_` in a name becomes `-`, a final one is
    removed.
    """
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{rendered}>{text(content)}</{name}>")


def mark(word: str, kind: str, means: str = "") -> Markup:
    """Render a word with a color: `kind` is good, busy, bad or dim. `means` becomes its title."""
    return element("span", word, class_=f"mark {kind}", title=means or None)


def facts(rows: Iterable[tuple[str, object]]) -> Markup:
    """Render a list of names and values; those that are None or empty are omitted."""
    rendered_rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{text(value)}</dd>" for name, value in rows if value not in {None, ""}
    )
    return Markup(f"<dl>{rendered_rows}</dl>") if rendered_rows else Markup()


def details(summary: object, content: object, *, name: str | None = None) -> Markup:
    """Render folded content; a script finds it by `name` after a refresh."""
    return element("details", join([element("summary", summary), content]), id=name)


LOOK: Final = """\
:root{color-scheme:light dark;--ink:#1c2126;--soft:#59636e;--paper:#f4f6f8;--card:#fff;--line:#dde2e7;
--good:#12703a;--busy:#8a5300;--bad:#b3140f;--goodbg:#e2f5e9;--busybg:#fdf0d8;--badbg:#fde7e5;--bar:#2f6fde}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#9aa5b1;--paper:#12161a;--card:#1b2127;
--line:#313a43;--good:#6ddb97;--busy:#f0b95b;--bad:#ff8d86;--goodbg:#143322;--busybg:#3a2b10;--badbg:#43191a;
--bar:#6aa0ff}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0;background:var(--paper);color:var(--ink);
overflow-wrap:anywhere}
header,main,footer{max-width:76rem;margin:auto;padding:0 1rem}
header{padding-top:1.25rem}h1{font-size:1.1rem;font-weight:600;margin:0;color:var(--soft)}p{margin:.25rem 0}
.state{font-size:1.9rem;font-weight:700;line-height:1.2;margin:.35rem 0 .1rem}
.state small{font-size:1rem;font-weight:500;color:var(--soft)}
.state.good{color:var(--good)}.state.busy{color:var(--busy)}.state.bad{color:var(--bad)}
.state::before{content:"";display:inline-block;width:.62em;height:.62em;border-radius:50%;
background:currentColor;margin-right:.45em}.state.bad::before{border-radius:2px}
.state.busy::before{border-radius:50% 50% 0 50%}
dt{color:var(--soft)}dd{margin:0;font-variant-numeric:tabular-nums}
.mark{font-weight:600}.mark.good{color:var(--good)}.mark.busy{color:var(--busy)}
.mark.bad{color:var(--bad)}.mark.dim{color:var(--soft)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .9rem .3rem 0;vertical-align:top}
tbody tr{border-top:1px solid var(--line)}td.number,th.number{text-align:right}summary{cursor:pointer}
"""
"""Colors, headings, states, tables."""
