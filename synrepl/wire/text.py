"""Sanitizing of text from peers, for terminals and logs."""

from typing import Any, Final

__all__ = ["printable", "printable_values"]

SHOWN: Final = 200
"""Characters of a peer's text that are shown by default."""


def printable(text: str, *, limit: int = SHOWN) -> str:
    """Return `text` in a form that is safe for logs, messages and terminals.

    Escape sequences, line ends, other control characters, marks that change the direction of text and lone
    surrogates are shown as escapes (``\\x1b``). Text longer than `limit` characters ends in ``...``.
    """
    shown = text if len(text) <= limit else text[:limit] + "..."
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else _escape(character) for character in shown)


def printable_values(value: Any) -> Any:
    """Make every string in a JSON value `printable`, member names too, without a length limit."""
    if isinstance(value, str):
        return printable(value, limit=len(value))
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    if isinstance(value, dict):
        return {printable_values(name): printable_values(member) for name, member in value.items()}
    return value


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
