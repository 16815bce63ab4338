"""Filters: which facts of a log a reader wants."""

from collections.abc import Iterable
from typing import Final

import msgspec


class Filter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Selects the facts of these streams by these writers. None selects all streams, or all writers."""

    streams: frozenset[str] | None = None
    writers: frozenset[str] | None = None

    @classmethod
    def of(cls, *, streams: Iterable[str] | None = None, writers: Iterable[str] | None = None) -> "Filter":
        """Make a filter of any iterables of names."""
        return cls(*(None if names is None else frozenset(names) for names in (streams, writers)))

    @property
    def is_open(self) -> bool:
        """Whether every fact passes."""
        return self.streams is None and self.writers is None

    def passes(self, stream: str, writer: str) -> bool:
        """Whether facts of this stream by this writer pass."""
        return (self.streams is None or stream in self.streams) and (
            self.writers is None or writer in self.writers
        )

    def narrowed(self, streams: frozenset[str] | None) -> "Filter":
        """Return the filter as told to who may see these streams (None: all): others are not named."""
        if self.streams is None or streams is None:
            return self
        return Filter(self.streams & streams, self.writers)

    def within(self, wider: "Filter") -> bool:
        """Whether every fact that passes also passes `wider`."""
        return all(
            theirs is None or (ours is not None and ours <= theirs)
            for ours, theirs in ((self.streams, wider.streams), (self.writers, wider.writers))
        )


ALL: Final = Filter()
