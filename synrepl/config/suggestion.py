"""Suggestion of the nearest known name for a mistyped one."""

from collections.abc import Sequence

__all__ = ["suggest"]


def suggest(given: str, known: Sequence[str]) -> str:
    """Return ``; did you mean ...?`` if a known name is near, otherwise an empty text."""
    import difflib  # Imported late: large and rarely needed.

    near = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
