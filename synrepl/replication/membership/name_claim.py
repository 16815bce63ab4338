"""NameClaim: whether this process may write under its names on a shared channel."""

import random
from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.replication.machine import Machine
from synrepl.replication.membership.claim_states import TRANSITIONS, ClaimEvent, ClaimState

PROBE_SECONDS: Final = 1.0
"""How long to listen for another process with our name before publishing under it."""

CONFLICT_SECONDS: Final = 30.0
"""After a conflict, how long the other process must be silent before we write again."""


class NameClaim:
    """Listens for `probe_seconds` before it grants the names, and withdraws them if another process uses one.

    With two processes under one name, others would drop facts of both. Once the other process has been silent
    for `CONFLICT_SECONDS`, the claim asks and listens again. `ask` makes all processes name their writers; it
    returns False if this process cannot ask now. `rng` is for delays that must differ between processes.
    """

    _logger = Logger()

    def __init__(
        self,
        clock: IClock,
        rng: random.Random,
        *,
        probe_seconds: float,
        is_joined: Callable[[], bool],
        ask: Callable[[], bool],
        granted: Callable[[], object],
        withdrawn: Callable[[], object],
    ) -> None:
        self._machine = Machine("claim of names", TRANSITIONS, ClaimState.UNASKED)
        self.conflict: str | None = None
        """Which stream another process writes under a name of ours, and what to do."""
        self._rng = rng
        self._probe_seconds = probe_seconds
        self._is_joined = is_joined
        self._ask = ask
        self._granted = granted
        self._withdrawn = withdrawn
        self._probe_timer = Timer(clock, self._probe_finished)
        self._conflict_timer = Timer(clock, self._probe_again)

    @property
    def state(self) -> ClaimState:
        """How far the claim is."""
        return self._machine.state

    @property
    def is_granted(self) -> bool:
        """Whether this process may write under its names."""
        return self.state is ClaimState.GRANTED

    def joined(self) -> None:
        """This process has joined the channel: listen, unless that was done, or there is a conflict."""
        is_new = self.state in (ClaimState.UNASKED, ClaimState.LISTENING)
        self._machine.move(ClaimEvent.JOINED, ClaimState.LISTENING if is_new else None)
        if is_new:
            self._probe_timer.restart(self._probe_seconds)

    def contest(self, stream: str, writer: str) -> None:
        """Another process writes this stream under a name of ours: withdraw."""
        conflict = (
            f"another process on the channel writes {stream} as {writer}: give this process another"
            " --instance-name, or another `writer` in redis_writes"
        )
        if self.conflict is None:
            self._logger.critical("{conflict}; publishing on Redis is stopped", conflict=conflict)
        self.conflict = conflict
        self._machine.move(ClaimEvent.CONTEST, ClaimState.CONTESTED)
        self._withdrawn()
        self._probe_timer.stop()
        self._wait_for_silence()

    def stop(self) -> None:
        """Stop all timers."""
        self._probe_timer.stop()
        self._conflict_timer.stop()

    def _wait_for_silence(self) -> None:
        # Delays are random, since the other process may be doing the same.
        self._conflict_timer.restart(CONFLICT_SECONDS * self._rng.uniform(1.0, 1.1))

    def _probe_finished(self) -> None:
        """Grant the names if no other process used them, and it would have been heard."""
        was_contested = self.state is ClaimState.LISTENING_AGAIN
        if self._is_joined():
            if was_contested:
                self._logger.info("publishing on Redis again: no other process uses the names of this one")
            self.conflict = None
            self._machine.move(ClaimEvent.LISTENED, ClaimState.GRANTED)
            self._granted()
        elif was_contested:
            self._machine.move(ClaimEvent.LISTENED, ClaimState.CONTESTED)
            self._wait_for_silence()
        else:
            self._machine.move(ClaimEvent.LISTENED, ClaimState.UNASKED)

    def _probe_again(self) -> None:
        """Probe whether the other process is gone or only silent."""
        if self._ask():
            self._machine.move(ClaimEvent.SILENT, ClaimState.LISTENING_AGAIN)
            self._probe_timer.restart(self._probe_seconds)
        else:
            self._machine.move(ClaimEvent.SILENT, ClaimState.CONTESTED)
            self._wait_for_silence()
