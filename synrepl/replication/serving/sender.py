"""Sender: the loop that sends the log, to whomever and in whatever form.

A follower on a socket, a replica, and an answer over HTTP, finite or endless, get the same facts in the same
order. What differs is the form (`LogEncoder`), where the bytes go (`ISink`), and what happens at the head of
the log: a new way to serve the log is an encoder and a sink, and no loop. For live followers that wait at
the head, `pump_all` in `publisher.py` does in one go what this loop would do for each of them.

The loop asks the cursor (`Feed.next`) what comes next, and does it: a group from the ring is encoded once for
all senders with the same encoder and written at once; a page is read from the log in its thread, one at a
time. It goes on until there is nothing to do or the sink has no space (`pause`). So a slow reader costs a
cursor, and never a queue: the log is its queue. The loop is a plain function (`pump`) that whoever changes
something calls, because a live reader must cost no coroutine and no Deferred for each commit; only reading
the log is asynchronous. At the head a sender asks `LogWaiters` to call it for the next commit that concerns
it, or is pumped by its owner.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from synrepl.base.history import EpochStart
from synrepl.replication.serving.encoder import LogEncoder
from synrepl.replication.serving.feed import (
    EphemeralStep,
    Feed,
    FeedPosition,
    IFeed,
    PageStep,
    PositionsStep,
    Stop,
    TokenPage,
)
from synrepl.replication.serving.log_waiters import ANY, Interest, LogWaiters
from synrepl.replication.serving.ring import RingGroup
from synrepl.storage.log import Log


class ISink(Protocol):
    """Where the bytes go."""

    def write(self, data: bytes) -> None:
        """Send these bytes. May call `Sender.pause` before it returns."""


@implementer(IPushProducer)
class Sender:
    """Sends what a feed selects (None: nothing yet) to a sink.

    `on_sent` is called after each write of what the feed handed out, `on_head` when the reader has
    everything: it returns whether to go on. Then the sender waits for the next commit of this `interest`
    (without `waiters` for its owner, who calls `pump`).

    `position`: everything selected up to there was written. With `needs_digests` the log is asked for those
    of its digests that the ring lacks; `digest` is the one at the start.
    """

    def __init__(
        self,
        log: Log,
        feed: IFeed | None,
        encoder: LogEncoder,
        sink: ISink,
        *,
        waiters: LogWaiters | None = None,
        interest: Interest = ANY,
        on_sent: Callable[[], None] = lambda: None,
        on_head: Callable[[], bool] = lambda: True,
        needs_digests: bool = False,
        digest: str | None = None,
    ) -> None:
        self.feed = feed
        self.is_paused = False
        self.is_waiting = False
        """Whether the reader has everything, and waits for a commit."""
        self._log = log
        self.encoder = encoder
        self._sink = sink
        self._waiters = waiters
        self._interest = interest
        self._on_sent = on_sent
        self._on_head = on_head
        self._needs_digests = needs_digests
        if feed is not None:
            start = feed.cursor.position
            self.position = FeedPosition(start.epoch, start.serial, digest or start.digest)
        self._done: Deferred[Stop] | None = None
        self._reads: dict[Deferred[Any], Feed] = {}
        self._is_pumping = False
        self.is_stopped = False

    # -- what the owner and the transport call ---------------------------------------------------------------

    def run(self) -> "Deferred[Stop]":
        """Send until no more can follow, and fire with the reason: `Stop.WAIT` if `on_head` did not go on.

        Fails with what the log, the encoder, the sink or a callback raises. To cancel it is to `stop`.
        """
        done: Deferred[Stop] = Deferred(lambda _: self.stop())
        self._done = done
        self.pump()
        return done

    def pump(self) -> None:
        """Send everything that can be sent now. Extra calls are harmless."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while not self.is_paused and not self.is_stopped and self._step():
                pass
        except Exception as error:
            if self._done is None:
                raise
            self._end(error)
        finally:
            self._is_pumping = False

    def pause(self) -> None:
        """Note that the sink has no space."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on: the sink has space again."""
        self.is_paused = False
        if self.feed is not None:
            self.feed.resumed()
        self.pump()

    def skip(self) -> None:
        """Advance to the head: the owner knows that nothing before it is selected."""
        if self.feed is not None:
            self.feed.cursor.skip()
            self.position = self.feed.cursor.position

    def finish(self) -> None:
        """End now, as at the head."""
        self._end(Stop.WAIT)

    def stop(self) -> None:
        """Send nothing more: the connection was lost, or the owner has ended it. Idempotent."""
        self.is_stopped = True
        if self.is_waiting and self._waiters is not None:
            self._waiters.forget(self._woken)
        self.is_waiting = False
        for read in list(self._reads):
            read.cancel()

    pauseProducing = pause
    resumeProducing = resume

    def stopProducing(self) -> None:
        """Do nothing: who waits for `run` cancels it when the connection is lost."""

    # -- the loop --------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Do what comes next; return whether to go on."""
        if self.feed is None or self.is_waiting or self.feed.is_reading:
            return False
        step = self.feed.next()
        feed = self.feed.cursor
        match step:
            case RingGroup() as group:
                self._send_group(feed, group)
            case PageStep():
                self._start_reading(feed, self._send_page(feed, self.encoder.page(self._log, feed, step)))
            case TokenPage():
                self._start_reading(feed, self._send_page(feed, self.encoder.token_page(feed, step)))
            case EpochStart():
                self._send(feed, self.encoder.epoch_start(step))
            case EphemeralStep():
                self._send(feed, self.encoder.ephemeral(step))
            case PositionsStep():
                self._send(feed, self.encoder.positions(step))
            case Stop.WAIT:
                self._reach_head()
                return False
            case _:
                self._end(step)
                return False
        return True

    def _send_group(self, feed: Feed, group: RingGroup) -> None:
        data, last = feed.lines(group, self.encoder.shared)
        if feed.needs_receipts:
            self._start_reading(feed, self._send_with_receipts(feed, data, last))
            return
        feed.sent(last)
        if self._needs_digests and feed.digest is None:
            self._start_reading(feed, self._send_with_digest(feed, data))
        else:
            self._send(feed, data)

    async def _send_with_receipts(self, feed: Feed, data: bytes, last: RingGroup) -> None:
        receipts = await self._log.reads.receipts(feed.serial, last.serial, feed.seen)
        feed.sent(last)
        await self._send_with_digest(feed, self.encoder.receipts(receipts) + data)

    async def _send_page(self, feed: Feed, page: Awaitable[bytes | None]) -> None:
        data = await page
        if data is not None:
            await self._send_with_digest(feed, data)

    async def _send_with_digest(self, feed: Feed, data: bytes) -> None:
        digest = feed.digest
        if digest is None and self._needs_digests:
            digest = await self._log.reads.digest(feed.serial)
        self._send(feed, data, digest)

    def _send(self, feed: Feed, data: bytes, digest: str | None = None) -> None:
        # Before the write: its reader may answer at once.
        self.position = FeedPosition(feed.epoch, feed.serial, digest or feed.digest)
        if data:
            self._sink.write(data)
        self._on_sent()

    def _reach_head(self) -> None:
        if not self._on_head():
            self._end(Stop.WAIT)
        elif self._waiters is not None and not self.is_stopped:
            self.is_waiting = True
            self._waiters.listen(self._woken, self._interest)

    def _woken(self, group: RingGroup | None) -> None:
        self.is_waiting = False
        if group is not None and self.feed is not None:
            self.feed.cursor.skip(group)
        self.pump()

    def _start_reading(self, feed: Feed, work: Coroutine[Any, Any, None]) -> None:
        """Read from the log; nothing else is sent from this cursor until that has ended."""
        feed.is_reading = True
        read: Deferred[Any] = Deferred.fromCoroutine(work)
        if read.called:
            feed.is_reading = False
            read.addErrback(self._failed)
        else:
            self._reads[read] = feed
            read.addBoth(self._has_read, read)

    def _has_read(self, result: Any, read: "Deferred[Any]") -> None:
        self._reads.pop(read).is_reading = False
        if result is not None:
            self._failed(result)
        else:
            self.pump()

    def _failed(self, failure: Any) -> None:
        if not failure.check(CancelledError):
            self._end(failure.value)

    def _end(self, result: Stop | Exception) -> None:
        self.stop()
        done, self._done = self._done, None
        if done is None or done.called:
            return
        if isinstance(result, Stop):
            done.callback(result)
        else:
            done.errback(result)
