"""The streams and writers that publishers of a channel name: bounds for each publisher, each key, and all.

Publishers choose these names, and the channel keeps something for each. So what a publisher has named counts
for it and for its key as long as it is there, and not longer.
"""

from collections import Counter
from typing import Final

from synrepl.base.interfaces import IClock
from synrepl.base.problems import Problem
from synrepl.channel.ends import ChannelPublisher
from synrepl.errors import RemoteProtocolError
from synrepl.streams.writer import Writer
from synrepl.wire.text import printable

MAX_WRITERS: Final = 10_000
"""The most streams and writers of a channel."""

MAX_OF_KEY: Final = 5_000
"""The most of all publishers with the same key, or without one."""

MAX_OF_PUBLISHER: Final = 1_000
"""The most of one publisher. A process of Synapse writes some twenty streams."""


class PublisherLimits:
    """Counts the writers of all publishers, and refuses those beyond the bounds.

    A publisher without an `owner`, such as the upstream of this daemon, is bounded by `MAX_WRITERS` alone.
    """

    def __init__(self, clock: IClock) -> None:
        self.count = 0
        self._clock = clock
        self._by_owner: Counter[str] = Counter()
        self._full_since: float | None = None

    def add(self, publisher: ChannelPublisher, writer: Writer) -> None:
        """Note that the publisher names this writer. Raises `RemoteProtocolError` if it is one too many."""
        if writer in publisher.writers:
            return
        if publisher.owner is not None and len(publisher.writers) >= MAX_OF_PUBLISHER:
            raise RemoteProtocolError(
                f"this connection publishes more than {MAX_OF_PUBLISHER} streams and writers"
            )
        if why := self._why_full(publisher.owner):
            if self._full_since is None:
                self._full_since = self._clock.seconds()
            raise RemoteProtocolError(why)
        publisher.writers[writer] = writer
        self.count += 1
        if publisher.owner is not None:
            self._by_owner[publisher.owner] += 1

    def drop(self, publisher: ChannelPublisher) -> list[Writer]:
        """Forget what this publisher has named, and return it."""
        writers, publisher.writers = list(publisher.writers.values()), {}
        self.count -= len(writers)
        if publisher.owner is not None and writers:
            self._by_owner[publisher.owner] -= len(writers)
            if not self._by_owner[publisher.owner]:
                del self._by_owner[publisher.owner]
        if not self.problem:
            self._full_since = None
        return writers

    @property
    def problem(self) -> str:
        """Which owner has used up its share, or that the channel is full; empty if there is space for all."""
        fullest = max(self._by_owner, key=self._by_owner.__getitem__, default=None)
        return self._why_full(fullest)

    def problems(self) -> list[Problem]:
        """The problem, from the first refusal on."""
        if self._full_since is None:
            return []
        what = f"{self.problem}: who publishes further ones is disconnected. The status has its clients"
        return [Problem(what, self._full_since)]

    def _why_full(self, owner: str | None) -> str:
        if self.count >= MAX_WRITERS:
            return f"the channel has {MAX_WRITERS} streams and writers, its limit"
        if owner is not None and self._by_owner[owner] >= MAX_OF_KEY:
            whose = f"the key {printable(owner)} has" if owner else "peers without a key of their own have"
            return f"{whose} {MAX_OF_KEY} streams and writers on the channel, the limit for a key"
        return ""
