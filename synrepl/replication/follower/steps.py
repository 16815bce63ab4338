"""FactSteps: what is done with each fact of a stream before its position advances."""

from collections.abc import Callable

from synrepl.ports.interfaces import ICaches
from synrepl.replication.follower.positions import AppliedPositions
from synrepl.replication.follower.updates import Subscriber, Updates

__all__ = ["FactSteps"]


class FactSteps:
    """The subscribers of one stream in order, then its caches: `steps`, each with its index.

    A failed step is repeated until it succeeds. `report_failure` takes an error, the stream, and what failed,
    in words.
    """

    def __init__(
        self, stream: str, positions: AppliedPositions, report_failure: Callable[[Exception, str, str], None]
    ) -> None:
        self.steps: list[tuple[int, Subscriber]] = []
        self._stream = stream
        self._positions = positions
        self._report_failure = report_failure
        self._caches: ICaches | None = None

    @property
    def has_caches(self) -> bool:
        """Whether the stream invalidates caches."""
        return self._caches is not None

    def attach_caches(self, caches: ICaches) -> None:
        """Invalidate these caches with each fact from now on."""
        if self._caches is None:
            self._caches = caches
            self.steps.append((len(self.steps), self._invalidate))

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each fact."""
        steps = [step for _, step in self.steps]
        steps.insert(len(steps) - self.has_caches, subscriber)
        self.steps = list(enumerate(steps))

    def owner(self, index: int) -> str:
        """The code that runs a step, in words."""
        return "a cache" if self.steps[index][1] == self._invalidate else "a subscriber"

    def invalidate_stream(self) -> None:
        """Drop everything that the stream can invalidate."""
        if self._caches is not None:
            self._caches.invalidate_stream(self._stream)

    def _invalidate(self, updates: Updates[object]) -> None:
        """The last step. Raises only if neither the entries nor all caches can be dropped."""
        assert self._caches is not None
        if updates.writer not in self._positions.tokens:
            # The first fact of a new writer: its earlier facts may be newer than our entries.
            self.invalidate_stream()
        try:
            self._caches.apply(self._stream, updates.rows, token=updates.token)
        except Exception as error:
            self._report_failure(error, self._stream, "a cache")
            self.invalidate_stream()
