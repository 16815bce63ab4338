"""Reports of later epochs, not verified: another daemon may have been promoted."""

from typing import Final

from synrepl.ports.interfaces import IClock
from synrepl.wire.text import printable

__all__ = ["LaterEpochs"]

REPORTED_SECONDS: Final = 300.0
"""How long a sighting is reported."""

MAX_REPORTED: Final = 20
"""How many daemons are reported; the oldest reports are dropped first."""


class LaterEpochs:
    """The daemons that know a later epoch than this primary, for its status."""

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, float, str]] = {}

    def add(self, name: str, text: str) -> None:
        """Report this text for a daemon, for `REPORTED_SECONDS`."""
        self._forget()
        before = self._seen.pop(name, None)
        now = self._clock.seconds()
        self._seen[name] = (now if before is None else before[0], now, text)
        while len(self._seen) > MAX_REPORTED:
            del self._seen[next(iter(self._seen))]

    def add_replica(self, name: str, address: str, epoch: int, ours: int) -> str:
        """Report that a replica knows `epoch` while this primary is in epoch `ours`. Returns the text."""
        at = f" at {printable(address)}" if address else ""
        text = (
            f"replica {printable(name)}{at} knows epoch {epoch}, this daemon is primary in epoch {ours}: if"
            " another daemon was promoted, this one must not accept facts; run synrepl status at that replica"
        )
        self.add(name, text)
        return text

    def clear(self) -> None:
        """Drop all reports: this daemon is no longer primary in the epoch that they exceeded."""
        self._seen.clear()

    def problems(self) -> list[tuple[str, float]]:
        """The reports, each with the time at which it began."""
        self._forget()
        return [(text, began) for began, _, text in self._seen.values()]

    def _forget(self) -> None:
        oldest = self._clock.seconds() - REPORTED_SECONDS
        self._seen = {name: one for name, one in self._seen.items() if one[1] >= oldest}
