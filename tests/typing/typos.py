"""Mistyped names, which the type checker must refuse: without an error the ignores here are unused."""

from synrepl import Folower  # type: ignore[attr-defined]
from synrepl.streams import Recipt  # type: ignore[attr-defined]

print(Folower, Recipt)
