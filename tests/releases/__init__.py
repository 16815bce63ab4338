"""Facts of Synapse's releases, by first and last release, from its tags and wheels.

In the files a span is `since` and `until`: the first release that has something, and the first that lacks it
(null: the newest has it).
"""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from synrepl.wire.dialect import NEWEST, Dialect, span

MINORS = [Dialect.parse(f"1.{minor}") for minor in range(NEWEST.release[1] + 1)]
"""Every minor release from 1.0 to the newest."""


@cache
def facts(name: str) -> dict[str, Any]:
    """The facts of one file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / f"{name}.json").read_text("utf-8"))
    return found


def at(spans: Iterable[Any], dialect: Dialect) -> Any:
    """Which of these spans, lists or objects, has the release; None: none."""
    for one in spans:
        since, until = (one["since"], one.get("until")) if isinstance(one, dict) else one[:2]
        if dialect.release in span(since, until or ""):
            return one
    return None
