"""How fresh a replica's copy is: what its upstream is known to have, and when that was heard."""

from synrepl.base.interfaces import IClock
from synrepl.errors import RemoteProtocolError
from synrepl.replicas.replica.join import Progress
from synrepl.replicas.replica.own_copies import IOwnCopy
from synrepl.replicas.wire.native import Heartbeat


class Freshness:
    """Compares a copy with what its upstream says of itself.

    `head` is the highest serial that the upstream is known to have, `progress` how far a join or the catching
    up has come (None: neither is under way), `heartbeat` the last one. `fresh_at` is when the copy last had
    everything. `is_compared` tells whether an upstream that is linked to the primary has accepted the copy's
    position since the start, and none has shown since that the copy has facts which the primary has lost.
    """

    def __init__(self, log: IOwnCopy, clock: IClock) -> None:
        self.head = 0
        self.progress: Progress | None = None
        self.heartbeat: Heartbeat | None = None
        self.is_compared = False
        self._log = log
        self._clock = clock
        self.fresh_at = clock.seconds()
        self._contact_at: float | None = None

    def contacted(self) -> None:
        """Note that the upstream has sent something."""
        self._contact_at = self._clock.seconds()

    def subscribed(self, head: int) -> None:
        """Note that the upstream has accepted this copy's history, and that the catching up begins.

        `head` is the upstream's serial.
        """
        serial = self._log.head.serial
        self.head = head
        self.progress = Progress(serial, head, self._clock.seconds(), serial)

    def committed(self, heartbeat: Heartbeat | None) -> bool:
        """Note that what was received is in the log, with the last heartbeat among it.

        Returns whether the copy has everything. Raises `RemoteProtocolError` if the heartbeat names another
        digest than this log has.
        """
        position = self._log.position
        if heartbeat is not None and heartbeat is not self.heartbeat:
            self.heartbeat = heartbeat
            self.head = heartbeat.head
            if heartbeat.position.serial == position.serial and heartbeat.position.digest != position.digest:
                self.is_compared = False
                why = f"the upstream has another digest at serial {position.serial} than this copy"
                raise RemoteProtocolError(f"the histories differ: {why}")
        self.head = max(self.head, position.serial)
        if self.progress is not None:
            self.progress.done, self.progress.total = position.serial, self.head
        if position.serial < self.head:
            return False
        self.fresh_at = self._clock.seconds()
        return True

    def lag_rows(self) -> int:
        """By how many serials the upstream is known to be ahead of this copy."""
        return max(0, self.head - self._log.head.serial)

    def lag_seconds(self) -> float:
        """Seconds since this copy was last known to be up to date, or since the start."""
        return max(0.0, self._clock.seconds() - self.fresh_at)

    def silence(self) -> float:
        """Seconds since the last message of the upstream, or since the start if there was none."""
        return self._clock.seconds() - (self.fresh_at if self._contact_at is None else self._contact_at)

    @property
    def heard_seconds_ago(self) -> float | None:
        """Seconds since the last message of the upstream; None if there was none."""
        return None if self._contact_at is None else self._clock.seconds() - self._contact_at
