"""Which facts of a log somebody wants."""

from collections.abc import Iterable
from typing import Final

import msgspec

__all__ = ["ALL", "Filter"]


class Filter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Those of these streams that are by these writers; None: of all streams, by all writers."""

    streams: frozenset[str] | None = None
    writers: frozenset[str] | None = None

    @classmethod
    def of(cls, *, streams: Iterable[str] | None = None, writers: Iterable[str] | None = None) -> "Filter":
        """That of these names."""
        return cls(*(None if names is None else frozenset(names) for names in (streams, writers)))

    @property
    def is_open(self) -> bool:
        """Whether everything passes."""
        return self.streams is None and self.writers is None

    def passes(self, stream: str, writer: str) -> bool:
        """Whether facts of this stream by this writer are wanted."""
        return (self.streams is None or stream in self.streams) and (
            self.writers is None or writer in self.writers
        )

    def within(self, wider: "Filter") -> bool:
        """Whether nothing passes that does not pass `wider`."""
        return all(
            theirs is None or (ours is not None and ours <= theirs)
            for ours, theirs in ((self.streams, wider.streams), (self.writers, wider.writers))
        )


ALL: Final = Filter()
