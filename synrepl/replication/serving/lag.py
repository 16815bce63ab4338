"""How far readers are behind the head of the log, in rows and in seconds."""

import bisect
from typing import TYPE_CHECKING, Final

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer

if TYPE_CHECKING:
    from synrepl.storage.log import Log

SAMPLE_SECONDS: Final = 1.0
"""How often the log's head is sampled. This is the precision of lag in seconds."""

MAX_SAMPLES: Final = 7_200


class Lag:
    """Samples the head of the log, to tell for how long a reader at a serial has been behind."""

    def __init__(self, log: "Log", clock: IClock) -> None:
        self._log = log
        self._clock = clock
        self._timer = Timer(clock, self._sample)
        self.restart()
        self._timer.start(SAMPLE_SECONDS)

    def restart(self) -> None:
        """Forget all samples: the log was replaced."""
        self._sampled_at = self._clock.seconds()
        self._samples = [(self._log.head.serial, self._sampled_at)]

    def stop(self) -> None:
        """Sample no more."""
        self._timer.stop()

    def rows(self, serial: int) -> int:
        """The number of serials after this one."""
        return max(0, self._log.head.serial - serial)

    def seconds(self, serial: int) -> float:
        """Seconds since this serial was the head, to about a second; 0.0 if it still is."""
        if serial >= self._log.head.serial:
            return 0.0
        index = bisect.bisect_right(self._samples, serial, key=lambda sample: sample[0])
        # Beyond the last sample: it was the head when the head was looked at last.
        is_known = index < len(self._samples)
        return self._clock.seconds() - (self._samples[index][1] if is_known else self._sampled_at)

    def _sample(self) -> None:
        self._sampled_at = self._clock.seconds()
        serial = self._log.head.serial
        if serial > self._samples[-1][0]:
            self._samples.append((serial, self._sampled_at))
            del self._samples[:-MAX_SAMPLES]
        self._timer.start(SAMPLE_SECONDS)
