"""ReadGate: whether this daemon's log may be read, and which streams and writers its copy has."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from synrepl.base.notes import Notes
from synrepl.replication.addresses import Address
from synrepl.replication.hooks import Alone, IRole, ReadRefusal
from synrepl.wire.filter import ALL, Filter

MAX_NAMED: Final = 10
"""Names listed in a message; the rest are counted."""


def copy_filter(notes: Notes) -> Filter:
    """The filter of a log with these notes: everything, unless it is a filtered copy."""
    noted = notes.get("filter")
    return ALL if noted is None else msgspec.json.decode(noted, type=Filter)


@dataclass(eq=False, repr=False)
class ReadGate:
    """Says which readers may be served, and what. Every transport asks it before it serves a reader.

    `notes` returns the log's notes. `role` says whether the log may be read, and which daemon has all of it.
    """

    notes: Callable[[], Notes] = Notes
    role: IRole = field(default_factory=Alone)

    def __post_init__(self) -> None:
        self.subscribers: list[Callable[[ReadRefusal], object]] = []
        """Functions that are called when readers that were served must leave."""
        self._is_stopping = False
        self._told = ""

    def use(self, role: IRole) -> None:
        """Serve readers as this role allows."""
        self.role = role

    def stop(self) -> None:
        """Let all readers leave: the daemon is stopping."""
        self._is_stopping = True
        self.changed()

    def changed(self) -> None:
        """The role or the state of the daemon may have changed: let readers leave if they must."""
        refusal = self.unreadable()
        told, self._told = self._told, "" if refusal is None else refusal.code
        if refusal is not None and refusal.code not in (told, "not_ready"):
            for subscriber in self.subscribers:
                subscriber(refusal)

    def primary(self) -> Address:
        """The primary's address, as far as it is known, if that is another daemon."""
        return Address() if self.role.is_primary else self.role.primary

    @property
    def filter(self) -> Filter:
        """The streams and writers whose facts are held."""
        return copy_filter(self.notes())

    @property
    def primary_address(self) -> str:
        """The primary's address as ``NATIVE HTTP``, ``-`` for a missing part; empty if unknown."""
        where = self.primary()
        return str(where) if where else ""

    def unreadable(self) -> ReadRefusal | None:
        """Why no reader is served, with the address to use instead if known; None if readers are served."""
        if self._is_stopping:
            return ReadRefusal("stopping", "server shutting down")
        if self.role.is_whole:
            return self.role.reading_refusal()
        why = f"this replica has no whole copy yet (joining): {self._ask_instead() or 'try again later'}"
        return ReadRefusal("not_ready", why)

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
        where = self.primary().words
        return f"ask {where}" if where else ""


def _listed(names: Collection[str]) -> str:
    found = sorted(names)
    more = len(found) - MAX_NAMED
    return ", ".join(found[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
