"""Reads the logs of real Synapse processes for what they complain of."""

from __future__ import annotations

import re
from collections.abc import Iterator


def trouble_in(log: str, about: tuple[str, ...] = ("replication", "redis", "stream")) -> Iterator[str]:
    """What a process complained of: every error, and the warnings about these matters, with their tracebacks.

    Left out is a race of Synapse's own, between its threads of the database and its loop that adds up their
    times each ten seconds (`PerformanceCounters.interval` of 1.163.2 reads a dict to which they add).
    """
    entries = entries_of(log)
    for entry, following in zip(entries, [*entries[1:], ""], strict=True):
        level, _, rest = entry.partition(",")[2].partition(" ")[2].partition(" ")
        if (
            level in ("ERROR", "CRITICAL")
            or "Traceback (most recent call last)" in entry
            or (level == "WARNING" and any(word in rest.lower() for word in about))
        ):
            is_headline = entry.endswith("twisted - sentinel - Unhandled error in Deferred:")
            if not _adds_up_times(following if is_headline else entry):
                yield entry


def _adds_up_times(entry: str) -> bool:
    """Whether this is the traceback of that loop."""
    return ", in interval\n" in entry and entry.endswith("dictionary changed size during iteration")


def entries_of(log: str) -> list[str]:
    """The entries of a log, each with all of its lines; the first may have lost its beginning."""
    return re.split(r"\n(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} )", log.strip("\n"))
