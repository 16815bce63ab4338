"""What the status asks of the parts of a daemon."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from synrepl.base.access import LOCAL, Access
from synrepl.base.problems import Notice, Problem
from synrepl.replication.stored_bytes import IStoredBytes


class StatusSection(Protocol):
    """A part of the daemon that has a section in the status."""

    def status(self) -> dict[str, Any]:
        """The section."""


class StatusPart(StatusSection, Protocol):
    """A part whose problems are the daemon's own."""

    def problems(self) -> list[Problem]:
        """The problems, first those that make the daemon not ready."""


class Lagging(Protocol):
    """What can be late: ingest behind its sources, and a copy behind what it copies."""

    def lag_seconds(self) -> float:
        """Seconds since this daemon was last up to date with its sources, or its upstream."""

    def lag_rows(self) -> int:
        """The number of facts that are known to be missing."""


class FactReceiver(StatusPart, Lagging, Protocol):
    """A part of the daemon that receives facts: ingest."""

    def notices(self) -> list[Notice]:
        """What needs attention at its sources."""


class RoomPart(Protocol):
    """What a room runs in a daemon, as the status and the metrics see it (`synrepl.daemon.parts.Part`)."""

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        """Its keys of the status, as far as a peer with these rights may see them."""

    def problems(self) -> Sequence[Problem]:
        """The errors of the status, first those that make the daemon not ready."""

    def notices(self, access: Access = LOCAL) -> Sequence[Notice]:
        """What needs attention elsewhere."""

    def stored_bytes(self) -> IStoredBytes | None:
        """The bytes that it stores under their checksums; None if it stores none."""

    def collect(self) -> None:
        """Set the metrics that are read only when they are asked for."""


NO_SOURCE: Final[dict[str, Any]] = {
    "lag_seconds": 0.0,
    "lag_rows": 0,
    "gaps": [],
    "lost": [],
    "writes": [],
    "is_writing": False,
    "writers": [],
}
"""What the status says of a channel from which this daemon takes no facts."""

NO_INGEST: Final[dict[str, Any]] = {
    "redis": None,
    "following": [],
    "stuck": [],
}


class NoIngest:
    """The ingest of a daemon that receives no facts from others."""

    def status(self) -> dict[str, Any]:
        """The section of the status."""
        return NO_INGEST

    def problems(self) -> list[Problem]:
        """Return none."""
        return []

    def notices(self) -> list[Notice]:
        """Return none."""
        return []

    def lag_seconds(self) -> float:
        """Return 0: there is nothing to wait for."""
        return 0.0

    def lag_rows(self) -> int:
        """Return 0."""
        return 0
