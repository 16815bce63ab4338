"""Files in ``synrepl status``."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from synrepl.html.humanize import size, span


def status_table(found: Mapping[str, Any], now: float) -> Iterator[str]:
    """Yield the lines about files of a status, if there are any files."""
    one = found.get("files")
    if one is None or not any(one[key] for key in ("stored", "wanted", "missing", "failing", "quarantined")):
        return
    yield (
        f"files: {one['stored']:,} stored ({size(one['stored_bytes'])}), {one['missing']:,} missing,"
        f" {one['wanted']:,} wanted, {one['in_flight']:,} in flight, {one['quarantined']:,} quarantined"
    )
    for failing in one["failing"]:
        left = failing["next_at"] - now
        when = f"in {span(left)}" if left > 0 else "now"
        text = f"    {failing['name']}: {failing['why']} ({failing['tries']} tries, the next {when})"
        yield click.style(text, "yellow")
