"""Lag of writers behind the newest fact of a shared stream, over time."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from synrepl.pipeline.report.bins import Bins

__all__ = ["WriterLag", "standings"]


class WriterLag(msgspec.Struct, frozen=True):
    """The lag of a writer at the end of each bin: seconds of silence, and tokens behind the stream's newest.

    None before the first fact of the writer.
    """

    stream: str
    writer: str
    silent: list[float | None]
    behind: list[int | None]

    @property
    def silent_most(self) -> float:
        """The longest silence at the end of a bin, in seconds."""
        return max((one for one in self.silent if one is not None), default=0.0)


def standings(over_time: Iterable[Mapping[str, Any]], bins: Bins, *, last_ms: int) -> list[WriterLag]:
    """Return the lags in streams with several writers, from the counts by bin (`counts.over_time`)."""
    seen: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for row in over_time:
        seen[row["stream"]][row["writer"]][row["bin"]] = row
    ends = [min((start + bins.width) * 1000, last_ms) for start in bins.starts]
    made = []
    for stream, writers in sorted(seen.items()):
        if len(writers) < 2:
            continue
        heads: list[int] = []
        head = 0
        for position in range(bins.count):
            told = (found[position]["token"] for found in writers.values() if position in found)
            head = max((token for token in told if token is not None), default=head)
            heads.append(max(head, heads[-1]) if heads else head)
        for writer, found in sorted(writers.items()):
            silent: list[float | None] = []
            behind: list[int | None] = []
            heard_ms: int | None = None
            token: int | None = None
            for position in range(bins.count):
                if position in found:
                    row = found[position]
                    heard_ms = row["last_ms"]
                    token = row["token"] if row["token"] is not None else token
                silent.append(None if heard_ms is None else max(0, ends[position] - heard_ms) / 1000)
                behind.append(None if token is None else max(0, heads[position] - token))
            made.append(WriterLag(stream, writer, silent, behind))
    return made
