"""HTML elements. Text is escaped; only `Markup` is inserted as it is."""

from collections.abc import Iterable
from html import escape

__all__ = ["Markup", "details", "element", "facts", "join", "mark", "text"]


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
