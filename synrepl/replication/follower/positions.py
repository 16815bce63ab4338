"""AppliedPositions: how far one stream is applied."""

from collections.abc import Callable, Mapping

import msgspec

__all__ = ["AppliedPositions", "PositionStep"]


class PositionStep(msgspec.Struct, frozen=True):
    """The position of `writer` moves to `token` once something is done: a fact is applied, or skipped.

    `is_position`: a POSITION is processed then.
    """

    writer: str
    token: int
    is_position: bool = False


class AppliedPositions:
    """The applied position of each writer of one stream: every fact up to that token was applied.

    The only owner of these tokens; everything else reads `tokens`. They move in three ways:

    * `advance`: a fact was applied and its caches were invalidated; or nothing up to a POSITION is missing;
      or everything that the skipped facts could invalidate was dropped first;
    * `advance_external`: another source applied the facts; there are no caches in that case;
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

    def advance_external(self, writer: str, token: int) -> None:
        """Another source has applied every fact of this writer up to `token`, without invalidating caches."""
        self.advance(writer, token)

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
