"""Which key each run of a worker belongs to: the one that named it first."""

from collections import OrderedDict
from typing import Final

from synrepl.wire.text import MAX_NAME

MAX_RUNS: Final = 1_000
"""The most runs that are remembered for a key: beyond it, the one that was named longest ago is forgotten."""


class RunOwners:
    """Remembers by which key a run of a worker was named first.

    USER_SYNC names no instance, but a run of it: a random word for each start of a process. So nobody can
    know beforehand whose a run is, and nobody guesses the next one.
    """

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._by_owner: dict[str, OrderedDict[str, None]] = {}

    def is_of(self, run: str, key: str) -> bool:
        """Whether a peer with this key named this run first."""
        return self._owners.get(run) == key

    def claim(self, run: str, key: str) -> bool:
        """Note that a peer with this key names this run. False if it belongs to another key."""
        if len(run) > MAX_NAME or self._owners.setdefault(run, key) != key:
            return False
        runs = self._by_owner.setdefault(key, OrderedDict())
        runs[run] = None
        runs.move_to_end(run)
        if len(runs) > MAX_RUNS:
            del self._owners[runs.popitem(last=False)[0]]
        return True
