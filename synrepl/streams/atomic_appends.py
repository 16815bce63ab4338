"""Atomic appends in the log: a fact that says how many facts after it belong together.

The fact is of the stream ``atomic_appends``. It is part of what it opens: a reader that has it has the
facts after it too, or reads on. `storage/whole_appends.py` finds where such an append ends, and these keep
it whole:

* The writer: `Log.append_atomic` is one request, which `Committer` never divides; one transaction.
* Trimming (`SQLEngine.trim`) stops before an append, or after it.
* Pages of the log (`storage/fact_pages.py`), with more rows than were asked for if need be: so the changelog,
  archives and Spark.
* Replicas of all streams: `FactBatcher` (`replicas/replica/fact_batcher.py`) commits it once all of it has
  been received.

Followers by lines do not get it as a whole: each stream has its own tokens there, and is fetched by itself,
so that one may see the part in one stream before that in another. Each fact is whole (docs: guarantees,
G2).
"""

import re
from typing import Final

from synrepl.streams.catalog import ATOMIC_APPENDS
from synrepl.streams.facts import Fact

MAX_ATOMIC_FACTS: Final = 1_000
"""The most facts in an atomic append: readers and replicas take it as a whole."""

STREAM: Final = ATOMIC_APPENDS.name

_opening: Final = re.compile(rb"\[\[([0-9]{1,4})\]\]")


def opening_rows(count: int) -> bytes:
    """Return the rows of the fact before `count` facts that belong together."""
    return ATOMIC_APPENDS.canonical_fact([[count]])


def last_serial(serial: int, rows: bytes) -> int:
    """Return the last serial of the atomic append that a fact with this serial and these rows opens.

    Rows that nobody could have appended open nothing: they come from a damaged log.
    """
    found = _opening.fullmatch(rows)
    count = int(found[1]) if found else 0
    return serial + count if count <= MAX_ATOMIC_FACTS else serial


def end_of(fact: Fact) -> int:
    """Return the last serial of the atomic append that this fact opens; its own if it opens none."""
    return last_serial(fact.serial, fact.rows) if fact.stream == STREAM else fact.serial
