"""What a daemon's copy of the log holds, and whether it can be read."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from synrepl.replication.addresses import Address
from synrepl.wire.filter import ALL, Filter

__all__ = ["Holdings", "held"]

MAX_NAMED: Final = 10
"""Names in a message; the others are counted."""


def held(notes: Mapping[str, str]) -> Filter:
    """The filter of a log with these notes: everything, unless it is a copy that wanted only some."""
    noted = notes.get("filter")
    return ALL if noted is None else msgspec.json.decode(noted, type=Filter)


class Holdings:
    """What this daemon can answer for. Every transport asks it before it serves a reader.

    `notes` are those of the log. `joining` says whether there is no whole copy yet. `primary` is where the
    primary is, as far as that is known.
    """

    def __init__(
        self,
        notes: Callable[[], Mapping[str, str]] = dict,
        *,
        joining: Callable[[], bool] = lambda: False,
        primary: Callable[[], Address] = Address,
    ) -> None:
        self._notes = notes
        self._joining = joining
        self._primary = primary

    @property
    def filter(self) -> Filter:
        """The streams and writers of which facts are held."""
        return held(self._notes())

    @property
    def elsewhere(self) -> str:
        """Where the primary is, as ``NATIVE HTTP``; empty if that is not known."""
        where = self._primary()
        return str(where) if where else ""

    def unreadable(self) -> str:
        """Why nobody can be answered, and whom to ask; empty if readers are answered."""
        if not self._joining():
            return ""
        return f"this replica has no whole copy yet (joining): {self._ask_instead() or 'try again later'}"

    def lacks(self, streams: Iterable[str] = (), writers: Iterable[str] = ()) -> str:
        """Which of these streams and writers are not held, what is, and whom to ask; empty if all are."""
        has = self.filter
        for kind, names, known in (("stream", streams, has.streams), ("writer", writers, has.writers)):
            missing = [] if known is None else sorted(set(names) - known)
            if missing:
                asked = self._ask_instead()
                told = f"; {asked}" if asked else ""
                return f"the {kind} {missing[0]} is not here: {self.describe()}{told}"
        return ""

    def describe(self, seen: Collection[str] | None = None) -> str:
        """What is held, in words, of the streams that may be `seen` (None: all); empty if it is all."""
        has = self.filter
        if has.is_open:
            return ""
        streams = has.streams if has.streams is None or seen is None else has.streams & set(seen)
        what = "facts" if streams is None else _listed(streams) or "other streams"
        by = "" if has.writers is None else f" of the writer{'s' * (len(has.writers) > 1)} "
        return f"this copy holds only {what}{by}{_listed(has.writers or ())}"

    def _ask_instead(self) -> str:
        where = ", ".join(part for part in self.elsewhere.split() if part != "-")
        return f"ask {where}" if where else ""


def _listed(names: Collection[str]) -> str:
    found = sorted(names)
    more = len(found) - MAX_NAMED
    return ", ".join(found[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
