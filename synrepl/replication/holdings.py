"""Holdings: the part of the log that a daemon holds, and whether it can be read."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from synrepl.replication.addresses import Address
from synrepl.wire.filter import ALL, Filter

MAX_NAMED: Final = 10
"""Names listed in a message; the rest are counted."""


def held(notes: Mapping[str, str]) -> Filter:
    """The filter of a log with these notes: everything, unless it is a filtered copy."""
    noted = notes.get("filter")
    return ALL if noted is None else msgspec.json.decode(noted, type=Filter)


@dataclass(eq=False, repr=False)
class Holdings:
    """The streams and writers that this daemon can serve. Every transport checks it before serving a reader.

    `notes` returns the log's notes. `joining` says whether this daemon has no complete copy yet. `primary`
    returns the primary's address, as far as it is known.
    """

    notes: Callable[[], Mapping[str, str]] = dict
    _: KW_ONLY
    joining: Callable[[], bool] = lambda: False
    primary: Callable[[], Address] = Address

    @property
    def filter(self) -> Filter:
        """The streams and writers whose facts are held."""
        return held(self.notes())

    @property
    def primary_address(self) -> str:
        """The primary's address as ``NATIVE HTTP``, ``-`` for a missing part; empty if unknown."""
        where = self.primary()
        return str(where) if where else ""

    def unreadable(self) -> str:
        """Why no reader is served, with the address to use instead if known; empty if readers are served."""
        if not self.joining():
            return ""
        return f"this replica has no whole copy yet (joining): {self._ask_instead() or 'try again later'}"

    def lacks(self, streams: Iterable[str] = (), writers: Iterable[str] = ()) -> str:
        """The first of these streams and writers that is not held, as a message; empty if all are held.

        The message says what is held, and which address to use instead if one is known.
        """
        has = self.filter
        for kind, names, known in (("stream", streams, has.streams), ("writer", writers, has.writers)):
            missing = [] if known is None else sorted(set(names) - known)
            if missing:
                advice = self._ask_instead()
                hint = f"; {advice}" if advice else ""
                return f"the {kind} {missing[0]} is not here: {self.describe()}{hint}"
        return ""

    def describe(self, seen: Collection[str] | None = None) -> str:
        """What this copy holds, in words; empty if it holds everything.

        Of the streams, only those in `seen` are named: those that the peer may see (None: all).
        """
        has = self.filter
        if has.is_open:
            return ""
        streams = has.streams if has.streams is None or seen is None else has.streams & set(seen)
        what = "facts" if streams is None else _listed(streams) or "other streams"
        by = "" if has.writers is None else f" of the writer{'s' * (len(has.writers) > 1)} "
        return f"this copy holds only {what}{by}{_listed(has.writers or ())}"

    def _ask_instead(self) -> str:
        where = ", ".join(part for part in self.primary_address.split() if part != "-")
        return f"ask {where}" if where else ""


def _listed(names: Collection[str]) -> str:
    found = sorted(names)
    more = len(found) - MAX_NAMED
    return ", ".join(found[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
