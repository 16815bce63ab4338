"""How far one stream is applied, and the caches that go before it is further."""

from collections.abc import Mapping

from synrepl.ports.interfaces import ICaches
from synrepl.replication.follower.listener import CACHES, SUBSCRIBER, ApplierListener
from synrepl.replication.follower.updates import Subscriber, Updates

__all__ = ["AppliedPositions"]


class AppliedPositions:
    """Where one stream stands: of each writer, the token up to which every fact was applied.

    Rows, then caches, then the position: `steps` are all that is done with a fact before it counts, the
    subscribers in their order and then the caches. A position moves in one of these ways, and in no other:

    * `reach`, when each of the steps of a fact was done (`StreamFollower.run` does the same by hand);
    * `reach`, when a POSITION says that nothing lies between here and there, or that it was all fetched;
    * `skip`, and then `reach`, when facts on the way were not applied: what they could have invalidated goes
      first (`StreamFollower._jump` alone does so);
    * `reach_elsewhere`, when the facts on the way were applied by another source; there are no caches then;
    * `go_back`, when a push without order broke off: none of its positions was ever told.
    """

    def __init__(
        self, stream: str, tokens: dict[str, int], caches: ICaches | None, host: ApplierListener
    ) -> None:
        self.tokens = tokens
        self.steps: list[Subscriber] = []
        self._stream = stream
        self._host = host
        self._caches: ICaches | None = None
        if caches is not None:
            self.attach(caches)

    def attach(self, caches: ICaches) -> None:
        """These caches hang on this stream from now on."""
        if self._caches is None:
            self._caches = caches
            self.steps.append(self._drop)

    @property
    def has_caches(self) -> bool:
        """Whether any hang on this stream."""
        return self._caches is not None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call this function with each fact."""
        self.steps.insert(len(self.steps) - self.has_caches, subscriber)

    def whose(self, step: int) -> str:
        """Who does this step, in words."""
        return CACHES if self.has_caches and step == len(self.steps) - 1 else SUBSCRIBER

    def reach(self, writer: str, token: int) -> None:
        """Every fact of this writer up to `token` was applied, or `skip` has just answered for it."""
        self.tokens[writer] = token

    def reach_elsewhere(self, writer: str, token: int) -> None:
        """Another source has applied every fact of this writer up to `token`. It told no caches here."""
        assert self._caches is None, "a follower with caches is told of no other source"
        self.tokens[writer] = token

    def go_back(self, tokens: Mapping[str, int]) -> None:
        """Stand where this says. What was applied beyond it comes again; its caches were dropped."""
        self.tokens.clear()
        self.tokens.update(tokens)

    def skip(self) -> None:
        """Facts were missed, or may have been: what they invalidate cannot be known, so all of it goes."""
        if self._caches is not None:
            self._caches.skipped(self._stream)

    def _drop(self, updates: Updates[object]) -> None:
        """The last step. Raises only if neither these entries nor all of them could be dropped."""
        assert self._caches is not None
        if updates.writer not in self.tokens:
            # The first that is heard of this writer: what it wrote before may be younger than our entries.
            self._caches.skipped(self._stream)
        try:
            self._caches.apply(self._stream, updates.rows, token=updates.token)
        except Exception as error:
            self._host.trouble(error, self._stream, CACHES)
            self._caches.skipped(self._stream)
