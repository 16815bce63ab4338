"""StreamHistory: what is known about one stream over all its connections, such as its positions."""

from collections.abc import Callable, Mapping

import msgspec

from synrepl.replication.follower.order import RecentFacts

__all__ = ["AppliedPositions", "ApplyPolicy", "PositionStep", "StreamHistory"]


class PositionStep(msgspec.Struct, frozen=True):
    """The position of `writer` moves to `token` once something is done: a fact is applied, or skipped.

    `is_position`: a POSITION is processed then.
    """

    writer: str
    token: int
    is_position: bool = False


class AppliedPositions:
    """The applied position of each writer of one stream: every fact up to that token was applied.

    The only owner of these tokens; everything else reads `tokens`. They move in two ways:

    * `advance`: a fact was applied and its caches were invalidated; or nothing up to a POSITION is missing;
      or everything that the skipped facts could invalidate was dropped first; or another source applied the
      facts, and there are no caches in that case;
    * `rewind`: a push without order was cut off; none of its positions was in `reported`.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = dict(tokens)
        self.tokens: Mapping[str, int] = self._tokens
        # The setter of the dictionary itself: it is called for every row.
        self.advance: Callable[[str, int], None] = self._tokens.__setitem__
        self._held: dict[str, int] | None = None

    @property
    def reported(self) -> Mapping[str, int]:
        """The positions that may be reported as applied."""
        return self.tokens if self._held is None else self._held

    def hold_back(self) -> None:
        """Report the present positions until `release`: a later token says nothing about earlier facts."""
        self._held = dict(self._tokens)

    def release(self) -> None:
        """Report the positions as they move."""
        self._held = None

    def rewind(self) -> None:
        """Go back to the positions held back, if any.

        The facts applied since are applied again. Their caches were invalidated.
        """
        if self._held is not None:
            self._tokens.clear()
            self._tokens.update(self._held)
            self._held = None


class ApplyPolicy(msgspec.Struct, frozen=True):
    """How a stream is followed.

    `earliest`: a new writer is followed from its first fact. `is_kept`: facts are appended to a log, which
    does not need its own facts again when a writer is rewound. `resumes`: that log followed this channel
    before, so a stream without positions is a new one. `external_position` returns the token up to which
    another source has applied a writer's facts in order; -1 if none has.
    """

    ordered: bool
    monotonic: bool
    earliest: bool
    descends: bool = False
    is_kept: bool = False
    resumes: bool = False
    external_position: Callable[[str], int] | None = None


class StreamHistory:
    """What is known about one stream over all its connections.

    `policy`: how it is followed. `positions`: how far it is applied. `recent`: facts to deduplicate.
    `has_started`: a POSITION was processed. `is_out_of_order`: the server was seen to send later facts before
    earlier ones, as real masters do. `was_disconnected`: this is not the first connection. `announced`: the
    last POSITION of each writer whose rows arrive ahead of it; all earlier facts were applied. `has_caches`:
    the stream invalidates caches.
    """

    def __init__(self, policy: ApplyPolicy, positions: AppliedPositions) -> None:
        self.policy = policy
        self.positions = positions
        self.recent = RecentFacts()
        self.has_started = bool(positions.tokens)
        self.is_out_of_order = False
        self.was_disconnected = False
        self.has_caches = False
        self.announced: dict[str, int] = {}
        # The POSITION being processed. If it is not completed, the next one covers it.
        self.announcing: dict[str, int] = {}

    def position_unchecked(self, writer: str) -> None:
        """Late facts before the writer's POSITION could not be fetched: the next POSITION covers them."""
        self.announcing.pop(writer, None)

    def position_done(self, writer: str) -> None:
        """A POSITION of the writer was processed."""
        self.has_started = True
        if writer in self.announcing:
            token = self.announcing.pop(writer)
            self.announced[writer] = max(token, self.announced.get(writer, token))
