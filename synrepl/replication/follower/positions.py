"""AppliedPositions: how far one stream is applied, and the order of its side effects."""

from collections.abc import Mapping

from synrepl.ports.interfaces import ICaches
from synrepl.replication.follower.listener import CACHES, SUBSCRIBER, ApplierListener
from synrepl.replication.follower.updates import Subscriber, Updates

__all__ = ["AppliedPositions"]


class AppliedPositions:
    """The applied position of each writer of one stream: every fact up to that token was applied.

    `steps` are what is done with a fact before its position advances: the subscribers in order, then the
    caches. A position changes in these ways only:

    * `advance`, after all steps of a fact (`StreamApplier.rdata_run` has this inlined);
    * `advance`, when a POSITION shows that no facts are missing, or all missing facts were fetched;
    * `invalidate_all`, then `advance`, when facts were not applied: what they could have invalidated is
      dropped first (only `StreamApplier._skip_to` does this);
    * `advance_external`, when another source applied the facts; there are no caches in that case;
    * `rewind`, when an unordered push was cut off: none of its positions was reported.
    """

    def __init__(
        self, stream: str, tokens: dict[str, int], caches: ICaches | None, listener: ApplierListener
    ) -> None:
        self.tokens = tokens
        self.steps: list[Subscriber] = []
        self._stream = stream
        self._listener = listener
        self._caches: ICaches | None = None
        if caches is not None:
            self.attach_caches(caches)

    def attach_caches(self, caches: ICaches) -> None:
        """Invalidate these caches with each fact from now on."""
        if self._caches is None:
            self._caches = caches
            self.steps.append(self._invalidate)

    @property
    def has_caches(self) -> bool:
        """Whether this stream invalidates caches."""
        return self._caches is not None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each fact."""
        self.steps.insert(len(self.steps) - self.has_caches, subscriber)

    def step_owner(self, step: int) -> str:
        """The code that runs this step, in words."""
        return CACHES if self.has_caches and step == len(self.steps) - 1 else SUBSCRIBER

    def advance(self, writer: str, token: int) -> None:
        """Every fact of this writer up to `token` was applied, or covered by `invalidate_all`."""
        self.tokens[writer] = token

    def advance_external(self, writer: str, token: int) -> None:
        """Another source has applied every fact of this writer up to `token`, without invalidating caches."""
        assert self._caches is None, "a follower with caches has no external source"
        self.tokens[writer] = token

    def rewind(self, tokens: Mapping[str, int]) -> None:
        """Reset positions to `tokens`. Later facts are applied again; their caches were invalidated."""
        self.tokens.clear()
        self.tokens.update(tokens)

    def invalidate_all(self) -> None:
        """Drop everything this stream can invalidate: facts were missed, or may have been."""
        if self._caches is not None:
            self._caches.invalidate_stream(self._stream)

    def _invalidate(self, updates: Updates[object]) -> None:
        """The last step: invalidate caches.

        Raises only if neither the entries nor all caches can be dropped.
        """
        assert self._caches is not None
        if updates.writer not in self.tokens:
            # The first fact of a new writer: its earlier facts may be newer than our entries.
            self._caches.invalidate_stream(self._stream)
        try:
            self._caches.apply(self._stream, updates.rows, token=updates.token)
        except Exception as error:
            self._listener.report_error(error, self._stream, CACHES)
            self._caches.invalidate_stream(self._stream)
