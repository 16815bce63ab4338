"""HTML in small pieces. Whatever is text is escaped here; only `Markup` is taken as it is."""

from collections.abc import Iterable
from html import escape

__all__ = ["Markup", "details", "element", "facts", "join", "mark", "text"]


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(content: object) -> Markup:
    """What it says, escaped unless it is HTML."""
    if isinstance(content, Markup):
        return content
    return Markup("" if content is None else escape(str(content)))


def join(parts: Iterable[object]) -> Markup:
    """One after the other."""
    return Markup("".join(map(text, parts)))


def element(name: str, content: object = "", **attributes: object) -> Markup:
    """One element. An attribute that is None is left out; `_` in its name is `-`, and one at its end goes."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{said}>{text(content)}</{name}>")


def mark(word: str, kind: str, means: str = "") -> Markup:
    """A word with its color: `kind` is good, busy, bad or dim. What it means is its title."""
    return element("span", word, class_=f"mark {kind}", title=means or None)


def facts(rows: Iterable[tuple[str, object]]) -> Markup:
    """Names and what they are; what is None or empty is left out."""
    shown = "".join(
        f"<dt>{escape(name)}</dt><dd>{text(value)}</dd>" for name, value in rows if value not in {None, ""}
    )
    return Markup(f"<dl>{shown}</dl>") if shown else Markup()


def details(summary: object, content: object, *, name: str | None = None) -> Markup:
    """What is folded away; `name` is how a script knows it again."""
    return element("details", join([element("summary", summary), content]), id=name)
