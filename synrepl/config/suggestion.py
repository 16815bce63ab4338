"""The nearest known name, for who mistyped one."""

from collections.abc import Sequence

__all__ = ["suggestion"]


def suggestion(given: str, known: Sequence[str]) -> str:
    """``; did you mean ...?`` if a known name is near."""
    import difflib  # Here, for it is large, and seldom needed.

    near = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
