"""What everything has in common from which facts are heard."""

from typing import Any, Final

from synrepl.errors import GapError
from synrepl.replication.follower.follower import Follower

__all__ = ["PATIENCE_SECONDS", "Source", "Trouble", "gap_as_json"]

Trouble = tuple[str, float]
"""What is wrong, in words, and since when, in Unix seconds."""

LOST_SECONDS: Final = 3600.0
"""How long a loss is told among what is wrong now; it stays in the list of losses."""

PATIENCE_SECONDS: Final = 5.0
"""A source may be away for so long before it is called trouble: a restart takes less."""


def gap_as_json(gap: GapError) -> dict[str, Any]:
    """What is missing, as the status has it."""
    return {"stream": gap.stream, "writer": gap.writer, "have": gap.have, "want": gap.want, "why": gap.why}


class Source:
    """One follower that a daemon has, and how it is doing."""

    def __init__(self, follower: Follower, clock: Any) -> None:
        self.follower = follower
        self.clock = clock
        self.began = clock.seconds()

    def silence(self) -> Trouble | None:
        """Why nothing is heard, if that is so for longer than a restart takes."""
        raise NotImplementedError

    def troubles(self) -> list[Trouble]:
        """What is wrong, but for `reasons`."""
        now = self.clock.seconds()
        return [
            (f"lost, as nobody could be asked for it: {gap}", at)
            for at, gap in self.follower.lost_gaps
            if now - at < LOST_SECONDS
        ]

    def reasons(self) -> list[Trouble]:
        """Why what is here is not all there is."""
        silence = self.silence()
        now = self.clock.seconds()
        return ([silence] if silence else []) + [(str(gap), now) for gap in self.follower.gaps()]

    def lag_seconds(self) -> float:
        """How long ago it had all that was told; since the start if it never had."""
        since_start: float = self.clock.seconds() - self.began
        return min(self.follower.lag_seconds(), since_start)

    def describe(self) -> dict[str, Any]:
        """How it is doing, as the status has it."""
        return {
            "lag_seconds": round(self.lag_seconds(), 3),
            "lag_rows": self.follower.lag_rows(),
            "gaps": [gap_as_json(gap) for gap in self.follower.gaps()],
            "lost": [gap_as_json(gap) | {"at": round(at, 3)} for at, gap in self.follower.lost_gaps],
        }
