"""Acknowledgements: appends that wait until replicas have their facts on disk.

A fact is answered once it is on the primary's disk. Whoever cannot afford to lose it with that disk asks for
more: that so many replicas, or certain ones, have it on theirs. A replica says so by itself: it acknowledges
(ACK) each position of the log once that is on its disk. So nothing is sent for a fact that waits, and group
commit, readers and other appends do not wait for it: readers see a fact that waits as they see any other.

At the time-out nothing is rolled back. The fact is stored, and replicas may have it: the answer is that the
outcome is unknown, with the number of replicas that have it, and the same request, with its idempotency key,
waits again. (A log that takes back what its readers have seen needs a second kind of fact for that; see
choices.md.)

Counted are the replicas that are connected to this daemon and have subscribed, as only for those this daemon
knows that their copy is a part of its own log; that are promised (`promises.py`), so that a promotion finds
what they have; and that copy the stream and the writer. For a number only whole copies count: a copy with a
filter cannot be promoted, and whoever may see one stream could acknowledge whatever it likes. Who names a
replica has chosen it.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from twisted.internet.defer import Deferred

from synrepl.base.interfaces import IClock
from synrepl.base.response_errors import NotForwarded
from synrepl.base.tasks import Tasks
from synrepl.html.humanize import counted
from synrepl.replicas.promises import IPromised, PromiseKeeper
from synrepl.replication.serving.log_waiters import MAX_WAITERS
from synrepl.streams.writer import Writer
from synrepl.wire.acks import NO_ACKS, Acks


class IAcknowledger(IPromised, Protocol):
    """A subscribed replica of this daemon."""

    name: str

    @property
    def is_whole_copy(self) -> bool:
        """Whether it copies all streams and writers."""

    def holds(self, stream: str, writer: str) -> bool:
        """Whether it copies this writer's facts of this stream."""


@dataclass(eq=False, repr=False)
class Acknowledgements:
    """Everything that waits for replicas.

    `replicas` returns the subscribed ones; `promises` knows all that may acknowledge. `is_primary` tells
    whether an acknowledgement counts: that of another primary's history says nothing. `defaults` are the
    acknowledgements for which an append to a stream waits unless it says so itself.
    """

    clock: IClock
    promises: PromiseKeeper
    tasks: Tasks
    _: KW_ONLY
    replicas: Callable[[], Iterable[IAcknowledger]]
    is_primary: Callable[[], bool]
    defaults: Mapping[str, Acks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._waiting: dict[tuple[Acks, Writer], list[tuple[int, int, Deferred[None]]]] = {}
        """Serial, number in the order of arrival, and Deferred of each append; sorted."""
        self._arrived = 0
        self._count = 0

    def default(self, stream: str) -> Acks:
        """Return whom an append to this stream waits for, unless it says so itself."""
        return self.defaults.get(stream, NO_ACKS)

    async def promise(self, acks: Acks) -> None:
        """Note with the log that an append is about to wait for these acknowledgements."""
        await self.promises.promise(acks)

    def check(self, acks: Acks) -> None:
        """Raises `NotForwarded` if these acknowledgements can never come, before anything is stored."""
        known = sorted(one.name for one in self.promises.replicas())
        if unknown := [name for name in acks.names if name not in known]:
            why = f"acks: no replica is called {', '.join(unknown)}; there are: {', '.join(known) or 'none'}"
            raise NotForwarded("bad_request", why)
        if acks.number > len(known):
            why = f"acks: {acks.number} replicas are more than there are: {', '.join(known) or 'none'}"
            raise NotForwarded("bad_request", why)
        if self._count >= MAX_WAITERS:
            raise NotForwarded("busy", f"{MAX_WAITERS} appends already wait for replicas: retry later")

    async def wait(self, acks: Acks, writer: Writer, serial: int, timeout: float) -> None:
        """Return once the replicas have everything up to this serial on disk.

        They were promised (`PromiseKeeper.promise`) before the append with this serial. Raises `NotForwarded`
        after `timeout` seconds, with the number of replicas that have it.
        """
        if self._reached(acks, writer) >= serial:
            return
        waiting = self._waiting.setdefault((acks, writer), [])
        done: Deferred[None] = Deferred()
        self._arrived += 1
        self._count += 1
        entry = (serial, self._arrived, done)
        insort(waiting, entry)
        try:
            await done.addTimeout(timeout, self.clock, lambda *_: None)  # type: ignore[arg-type]
        finally:
            self._count -= 1
            if entry in waiting:
                waiting.remove(entry)
            if not waiting and self._waiting.get((acks, writer)) is waiting:
                del self._waiting[acks, writer]
        if self._reached(acks, writer) < serial:
            raise self._timed_out(acks, writer, serial)

    def advanced(self) -> None:
        """A replica has acknowledged more: answer what waited for that."""
        if not self.promises.is_settled and self.promises.advanced(self.replicas()):
            self.tasks.start(self.promises.save(), "saving which promise counts")
        for (acks, writer), waiting in list(self._waiting.items()):
            reached = self._reached(acks, writer)
            while waiting and waiting[0][0] <= reached:
                waiting.pop(0)[2].callback(None)

    def _reached(self, acks: Acks, writer: Writer) -> int:
        """The serial up to which enough replicas have everything; 0 if there are not enough of them."""
        if not self.is_primary():
            return 0
        may_acknowledge = self.promises.counted(acks)
        holding = [one for one in self.replicas() if one.uuid in may_acknowledge and one.holds(*writer)]
        if acks.names:
            at = {one.name: one.acknowledged for one in holding}
            return min(at.get(name, 0) for name in acks.names)
        serials = sorted((one.acknowledged for one in holding if one.is_whole_copy), reverse=True)
        return serials[acks.number - 1] if len(serials) >= acks.number > 0 else 0

    def _timed_out(self, acks: Acks, writer: Writer, serial: int) -> NotForwarded:
        have = sorted(
            one.name
            for one in self.replicas()
            if one.holds(*writer) and one.acknowledged >= serial and (acks.names or one.is_whole_copy)
        )
        why = (
            f"the facts are on the disk of this daemon, up to serial {serial}, and of"
            f" {counted(len(have), 'replica')} ({', '.join(have) or 'none'}); acks={acks} was asked for"
        )
        if late := self.promises.late(self.replicas()):
            why = (
                f"{why}. The list of replicas is not on the disk of {', '.join(late)} yet: if they are gone"
                " for good, end their leases (synrepl leases drop NAME)"
            )
        return NotForwarded("outcome_unknown", why, serial=serial, acknowledged=have)
