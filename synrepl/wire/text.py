"""Text of peers, made safe for terminals and logs."""

from typing import Any, Final

__all__ = ["printable", "printable_values"]

SHOWN: Final = 200
"""Characters of a peer's text that are shown, unless the caller says otherwise."""


def printable(text: str, *, limit: int = SHOWN) -> str:
    """`text` as it may stand in a log, a message or on a terminal.

    Escape sequences, line ends, other control characters, marks that change the direction of text and lone
    surrogates are shown as escapes (``\\x1b``); what is longer than `limit` characters ends in ``...``.
    """
    shown = text if len(text) <= limit else text[:limit] + "..."
    if shown.isprintable():
        return shown
    return "".join(one if one.isprintable() else _escaped(one) for one in shown)


def printable_values(value: Any) -> Any:
    """The same JSON, with every text in it `printable`, of any length; names of members too."""
    if isinstance(value, str):
        return printable(value, limit=len(value))
    if isinstance(value, list):
        return [printable_values(one) for one in value]
    if isinstance(value, dict):
        return {printable_values(name): printable_values(one) for name, one in value.items()}
    return value


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
