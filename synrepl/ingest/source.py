"""The base class of sources, and their status."""

from typing import Any, Final

from synrepl.errors import GapError
from synrepl.replication.follower.follower import Follower

__all__ = ["PATIENCE_SECONDS", "Source", "Problem", "gap_as_json"]

Problem = tuple[str, float]
"""A problem: text, and since when in Unix seconds."""

LOST_SECONDS: Final = 3600.0
"""How long a lost gap counts as a problem, in seconds. It stays in the list of lost gaps."""

PATIENCE_SECONDS: Final = 5.0
"""How long a source may be disconnected before that is a problem, in seconds: a restart takes less."""


def gap_as_json(gap: GapError) -> dict[str, Any]:
    """A gap, as the status shows it."""
    return {"stream": gap.stream, "writer": gap.writer, "have": gap.have, "want": gap.want, "why": gap.why}


class Source:
    """One follower of a daemon, and its status."""

    def __init__(self, follower: Follower, clock: Any) -> None:
        self.follower = follower
        self.clock = clock
        self.began = clock.seconds()

    def start(self) -> None:
        """Connect, and reconnect until `stop`."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    def silence(self) -> Problem | None:
        """Why this source cannot receive or publish, if that lasts longer than a restart takes; else None."""
        raise NotImplementedError

    def problems(self) -> list[Problem]:
        """Problems that are not among `not_ready_reasons`."""
        now = self.clock.seconds()
        return [
            (f"unrecoverable gap: no source has the missing facts: {gap}", at)
            for at, gap in self.follower.lost_gaps
            if now - at < LOST_SECONDS
        ]

    def not_ready_reasons(self) -> list[Problem]:
        """Reasons this daemon may be missing data."""
        silence = self.silence()
        now = self.clock.seconds()
        return ([silence] if silence else []) + [(str(gap), now) for gap in self.follower.gaps()]

    def lag_seconds(self) -> float:
        """Seconds since this source was last caught up, or since its start if it never was."""
        since_start: float = self.clock.seconds() - self.began
        return min(self.follower.lag_seconds(), since_start)

    def status(self) -> dict[str, Any]:
        """This source's part of the status."""
        return {
            "lag_seconds": round(self.lag_seconds(), 3),
            "lag_rows": self.follower.lag_rows(),
            "gaps": [gap_as_json(gap) for gap in self.follower.gaps()],
            "lost": [gap_as_json(gap) | {"at": round(at, 3)} for at, gap in self.follower.lost_gaps],
        }
