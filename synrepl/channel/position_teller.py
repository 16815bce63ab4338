"""PositionTeller: sends subscribers of a channel the positions that they lack, some in each turn.

A channel may have ten thousand streams and writers, and a subscriber may come, or come back, at any time.
"""

from collections.abc import Callable, Sequence
from typing import Final

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.channel.ends import ChannelSubscriber
from synrepl.streams.writer import Writer

POSITIONS_AT_ONCE: Final = 500
"""The most positions that are sent in a turn."""


class PositionTeller:
    """Sends subscribers the positions of the writers in their `lacks`, in order, and removes these from it.

    `encode` returns the message with the position of a writer; None if it is not known. `send` sends it.
    """

    def __init__(
        self,
        clock: IClock,
        encode: Callable[[Writer], bytes | None],
        send: Callable[[ChannelSubscriber, bytes], object],
    ) -> None:
        self._encode = encode
        self._send = send
        self._untold: dict[ChannelSubscriber, list[Writer]] = {}
        """By subscriber: the writers whose positions are still to be sent, the next one last."""
        self._timer = Timer(clock, self._tell_next)

    def tell(self, subscriber: ChannelSubscriber, writers: Sequence[Writer]) -> None:
        """Send the subscriber the positions of these writers: some now, and the rest in later turns."""
        self._untold[subscriber] = list(reversed(writers))
        self._tell_some(subscriber)

    def forget(self, subscriber: ChannelSubscriber) -> None:
        """Send this subscriber no more positions."""
        self._untold.pop(subscriber, None)

    def stop(self) -> None:
        """Send no more positions."""
        self._untold.clear()
        self._timer.stop()

    def _tell_some(self, subscriber: ChannelSubscriber) -> None:
        writers = self._untold.pop(subscriber)
        positions: list[bytes] = []
        while writers and len(positions) < POSITIONS_AT_ONCE:
            writer = writers.pop()
            # Its position, or a row of it with the position before that, may have come meanwhile.
            if writer in subscriber.lacks and (position := self._encode(writer)) is not None:
                del subscriber.lacks[writer]
                positions.append(position)
        if writers:
            # After those who wait already.
            self._untold[subscriber] = writers
            self._timer.start(0)
        if positions:
            self._send(subscriber, b"".join(positions))

    def _tell_next(self) -> None:
        subscriber = next(iter(self._untold), None)
        if subscriber is not None:
            self._tell_some(subscriber)
        if self._untold:
            self._timer.start(0)
