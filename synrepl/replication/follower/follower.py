"""Follower: a worker's typed view of the streams of a server."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar, overload

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.interfaces import IAllocated, IClock, IPositionStore
from synrepl.base.metrics import Metrics
from synrepl.base.tasks import Tasks
from synrepl.caches.registry import CacheRegistry
from synrepl.errors import ConfigError, GapError, NotConnected, WaitTimeout, suggest
from synrepl.replication.follower.clock import FollowerClock
from synrepl.replication.follower.events import FollowerEvents
from synrepl.replication.follower.followed_server import FollowedServer
from synrepl.replication.follower.followed_streams import FollowedStreams
from synrepl.replication.follower.position_saver import PositionSaver
from synrepl.replication.follower.states import Stopped
from synrepl.replication.follower.updates import FollowerEvent, ICatchUp, Updates
from synrepl.replication.follower.waiters import Waiter
from synrepl.replication.follower.waits import PositionWaits
from synrepl.streams.positions import VClock
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.commands import UserSync
from synrepl.wire.grammar import Command

R = TypeVar("R")
C = TypeVar("C", bound=Command)

Subscriber = Callable[[Updates[R]], Awaitable[None] | None]
BatchSubscriber = Callable[[Sequence[Updates[R]]], Awaitable[None] | None]

STARTS: Final = ("latest", "earliest")


class Follower:
    """Follows streams and calls subscribers with each fact, as a whole, in the order of its stream.

    ::

        import synrepl
        from synrepl.streams import RECEIPTS, Receipt

        positions = synrepl.FilePositions("pusher1.positions")
        follower = synrepl.Follower(instance="pusher1", positions=positions)

        @follower.on(RECEIPTS)
        async def wake_pushers(updates: synrepl.Updates[Receipt]) -> None:
            for row in updates.rows:
                print(row.room_id, updates.writer, updates.token)

    `synrepl.connect` returns the service that connects a follower. Call all methods in the reactor's
    thread. `server` is for transports: they call it, and it may change in any release.

    Arguments:

    * `instance`: the name of this worker.
    * `clock`: the reactor, or a test's clock. `connect` sets it if missing.
    * `streams`: the known streams; default `StreamTable.default()`. Only streams with a subscriber, a
      waiter or caches are followed.
    * `positions`: stores the applied positions between runs. Delivery is at-least-once: after a kill, facts
      applied since the last save (0.1 seconds, more if saves fail) are delivered again; with
      `SQLPositions` their effects were undone. Without a store every run starts as `start` says. Stores are
      `FilePositions` and `SQLPositions`. A save that fails is reported by an event, and repeated.
    * `catch_up`: where missing facts are fetched. `connect` sets it if missing, over TCP only with `http`.
      Without it, gaps are reported and stay open; after 3 attempts, those of a restarted writer are skipped.
    * `start`: where to start a stream without a position, ``latest`` (now) or ``earliest`` (its first fact).
    * `metrics`: the metrics to update.
    * `raw`: deliver rows as the JSON values received; to `on_everything`, also of streams not in `streams`.
    * `canonical`: deliver rows as the log stores them: JSON texts in the newest shape.
    * `external_position`: returns, for a stream and a writer, the token up to which another source has
      applied the facts (-1: none). In ordered streams they are not fetched. Excludes `caches`.
    * `caches`: the streams in `caches.streams` are followed, too. What a fact invalidates is dropped before
      its first subscriber is called, so that none reads a value older than its fact, and again after the
      last one, before the position advances and waiters wake, so that a cached value is never older than the
      positions reported here. If facts may have been missed, everything the stream can invalidate is dropped.
      Caches declared while connected count from the next subscription or connection on.
    * `syncing_users`: returns USER_SYNC for each user that is syncing at this worker. They are sent at each
      connection, as Synapse's workers do: the server may have restarted, or taken this worker for dead.
      Changes in between are the worker's own to `send`.
    * `allocated`: queried by `wait_for` for the highest token. `connect` sets it if missing and `http` is
      given.

    Raises `ConfigError` for another `start`, and for `caches` with `raw` or `canonical`, `ValueError` for
    `caches` with `external_position`.
    """

    _logger = Logger()

    def __init__(
        self,
        *,
        instance: str,
        clock: IClock | None = None,
        streams: StreamTable | None = None,
        positions: IPositionStore | None = None,
        catch_up: ICatchUp | None = None,
        start: Literal["latest", "earliest"] = "latest",
        metrics: Metrics | None = None,
        raw: bool = False,
        canonical: bool = False,
        external_position: Callable[[str, str], int] | None = None,
        caches: CacheRegistry | None = None,
        allocated: IAllocated | None = None,
        syncing_users: Callable[[], Iterable[UserSync]] | None = None,
    ) -> None:
        if start not in STARTS:
            raise ConfigError(
                f"start must be {' or '.join(STARTS)}, not {start!r}{suggest(str(start), STARTS)}"
            )
        self.instance = instance
        own_clock, tasks = FollowerClock(clock), Tasks(self._logger)
        events = self._events = FollowerEvents(own_clock, metrics)
        self._waits = PositionWaits(own_clock, tasks.start, events.report_failure, allocated)
        self._saver = PositionSaver(
            positions,
            metrics,
            self.positions,
            own_clock,
            lambda error: events.report_failure(error, "", "the position store"),
        )
        self._streams = FollowedStreams(
            table=streams if streams is not None else StreamTable.default(),
            earliest=start == "earliest",
            raw=raw,
            canonical=canonical,
            external_position=external_position,
            caches=caches,
            clock=own_clock,
            saver=self._saver,
            events=events,
        )
        self.server = FollowedServer(
            self._streams,
            self._waits,
            self._saver,
            events,
            clock=own_clock,
            tasks=tasks,
            metrics=metrics,
            catch_up=catch_up,
            syncing_users=syncing_users,
        )
        self._tasks = tasks
        if metrics is not None and not canonical:
            # A daemon reports the lag of all its followers itself.
            metrics.lag_seconds.set_function(self.lag_seconds)
            metrics.lag_rows.set_function(self.lag_rows)

    @overload
    def on(self, stream: Stream[R]) -> Callable[[Subscriber[R]], Subscriber[R]]: ...
    @overload
    def on(self, stream: str) -> Callable[[Subscriber[Any]], Subscriber[Any]]: ...
    def on(self, stream: Stream[Any] | str) -> Callable[[Subscriber[Any]], Subscriber[Any]]:
        """Decorator: call this function with each fact of the stream: one of `synrepl.streams`, or its name.

        The function takes an `Updates` and may be a coroutine function; the next fact of the stream waits
        until it is done. If it raises, it is called again with the same fact after a backoff of up to 8
        seconds, and the stream waits. Subscribers of one stream are called in the order of registration.
        A type checker knows the rows of ``RECEIPTS``, but not those of ``"receipts"``. Raises `UnknownStream`
        for the name of an unknown stream, `TypeError` for anything else, and `ConfigError` for a coroutine
        function if `positions` refuses it, as `SQLPositions` does::

            @follower.on(RECEIPTS)
            def show(updates: Updates[Receipt]) -> None:
                print(updates.writer, updates.token, updates.rows)
        """
        followed = self._stream_to_follow(stream)

        def subscribe(subscriber: Subscriber[Any]) -> Subscriber[Any]:
            self._streams.subscribe(followed, subscriber)
            return subscriber

        return subscribe

    @overload
    def on_batch(
        self, stream: Stream[R], *, max_facts: int = ...
    ) -> Callable[[BatchSubscriber[R]], BatchSubscriber[R]]: ...
    @overload
    def on_batch(
        self, stream: str, *, max_facts: int = ...
    ) -> Callable[[BatchSubscriber[Any]], BatchSubscriber[Any]]: ...
    def on_batch(
        self, stream: Stream[Any] | str, *, max_facts: int = 1_000
    ) -> Callable[[BatchSubscriber[Any]], BatchSubscriber[Any]]:
        """Decorator: call this function with all facts of the stream that are ready, at most `max_facts`.

        It is as `on` is, with a batch in place of a fact: the function takes a sequence of `Updates`, in the
        order of the stream, and the next batch waits until it is done. The position advances, and waiters
        wake, after the whole batch. If the function raises, it is called again with the same batch, and after
        a crash its facts are delivered again, perhaps in other batches. Nothing is held back to fill a batch:
        a fact that arrives alone is a batch of one.

        Batches belong to the stream. Each subscriber gets a batch when the one before is done with it; one of
        `on` gets its facts one by one, and is called again only with the one at which it raised. What the
        batch invalidates is dropped from caches before the first subscriber and after the last. The smallest
        `max_facts` of a stream counts. Raises `ConfigError` if it is less than 1, otherwise as `on` does::

            @follower.on_batch(RECEIPTS)
            def store(batch: Sequence[Updates[Receipt]]) -> None:
                print(batch[-1].token, [row for updates in batch for row in updates.rows])
        """
        if max_facts < 1:
            raise ConfigError(f"max_facts must be at least 1, not {max_facts}")
        followed = self._stream_to_follow(stream)

        def subscribe(subscriber: BatchSubscriber[Any]) -> BatchSubscriber[Any]:
            self._streams.subscribe_batches(followed, subscriber, max_facts)
            return subscriber

        return subscribe

    def _stream_to_follow(self, stream: Stream[Any] | str) -> Stream[Any]:
        followed = self._streams.table[stream] if isinstance(stream, str) else stream
        if not isinstance(followed, Stream):
            raise TypeError(
                f"a subscriber takes a stream, such as synrepl.streams.RECEIPTS, or its name, not {stream!r}"
            )
        return followed

    def on_everything(self, subscriber: Callable[[Updates[Any]], Awaitable[None] | None]) -> None:
        """Call this function with each fact of every stream of the table that the server has.

        With `raw`, streams outside the table are included. Raises `ConfigError` as `on` does.
        """
        self._streams.subscribe_to_all(subscriber)

    def on_command(self, command: type[C]) -> Callable[[Callable[[C], None]], Callable[[C], None]]:
        """Decorator: call this function with each command of this type, such as `RemoteServerUp`.

        Commands are not stored: those sent while disconnected are lost. RDATA is not included: use `on`. What
        the function raises is logged, and an event of the kind ``error``; it is not called again.
        """

        def subscribe(subscriber: Callable[[C], None]) -> Callable[[C], None]:
            self.server.command_subscribers.setdefault(command, []).append(subscriber)
            return subscriber

        return subscribe

    def on_event(self, subscriber: Callable[[FollowerEvent], None]) -> Callable[[FollowerEvent], None]:
        """Decorator: call this function with each `FollowerEvent`."""
        self._events.subscribers.append(subscriber)
        return subscriber

    def wait_for(
        self, stream: Stream[Any] | str, positions: Mapping[str, int] | VClock, timeout: float
    ) -> "Deferred[None]":
        """Wait until the facts up to these positions were applied (or skipped) and their caches invalidated.

        `positions` are the tokens by writer, or a `VClock`. `timeout` is in seconds. The Deferred fires in
        the reactor turn in which the last position is reached; it may be cancelled. It fails with
        `WaitTimeout`, or with `NeverAllocated` if a token does not exist or was lost. `allocated` is
        queried only if the token is above every applied position of the stream. Raises `UnknownStream` for
        the name of an unknown stream, `NotConnected` if the follower has no clock yet::

            await follower.wait_for(RECEIPTS, {"master": 54}, timeout=5)
        """
        if isinstance(stream, str):
            stream = self._streams.table[stream]
        if isinstance(positions, VClock):
            positions = positions.to_json().get(stream.name, {})
        applied = self._streams.executor(stream).machine.positions.reported
        return self._waits.wait(
            stream.name, positions, applied, timeout, partial(self._wait_timeout, timeout)
        )

    def caught_up(self, stream: Stream[Any], *, writer: str, token: int) -> "Deferred[None]":
        """Wait until the facts of this writer up to `token` were applied or skipped, without a timeout.

        Fails with `NeverAllocated` only if the writer falls back below the token.
        """
        applied = self._streams.executor(stream).machine.positions.reported
        return self._waits.wait_unchecked(stream.name, {writer: token}, applied)

    def _wait_timeout(self, timeout: float, waiter: Waiter) -> WaitTimeout:
        machine = self._streams.executors[waiter.stream].machine
        applied = machine.positions.reported
        return WaitTimeout(
            stream=waiter.stream,
            lacks={writer: (applied.get(writer), want) for writer, want in waiter.missing.items()},
            timeout=timeout,
            connection="connected" if self.is_connected else "disconnected",
            queued=len(machine.intake.queue),
        )

    @property
    def table(self) -> StreamTable:
        """The known streams, those with a subscriber included."""
        return self._streams.table

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self.server.is_connected

    def positions(self) -> dict[str, dict[str, int]]:
        """The applied positions, ``{stream: {writer: token}}``: facts up to them were applied or skipped."""
        return self._streams.positions()

    def waiting_streams(self) -> list[str]:
        """The streams that wait for missing facts, a subscriber, a cache or the end of a burst."""
        return [name for name, one in self._streams.executors.items() if one.machine.is_blocked]

    def lag_seconds(self) -> float:
        """Seconds since the follower was last up to date; infinite if it never was.

        Over TCP, PINGs are heartbeats: everything sent before a PING has arrived before it. So on an idle
        connection the lag is exact to about five seconds. On Redis it grows until the next message.
        """
        return self.server.lag_seconds()

    def lag_rows(self) -> int:
        """The number of tokens that are known to be missing; 0 if none."""
        machines = [one.machine for one in self._streams.executors.values()]
        return sum(machine.gaps.missing() for machine in machines)

    def gaps(self) -> list[GapError]:
        """The open gaps that could not be fetched yet, each with the reason of the last attempt."""
        return [gap for one in self._streams.executors.values() for gap in one.machine.gaps.errors.values()]

    @property
    def lost_gaps(self) -> list[tuple[float, GapError]]:
        """The last 100 gaps that were skipped as unrecoverable, each with its clock time in seconds."""
        return self._events.lost_gaps

    def send(self, command: Command) -> None:
        """Send a command to the server, such as USER_SYNC.

        Raises `NotConnected` without a connection, `LocalProtocolError` if the server's release lacks it.
        """
        if self.server.connection is None:
            raise NotConnected(f"not connected: {command.NAME} was not sent")
        self.server.connection.send(command)

    def stop(self) -> None:
        """Cancel all work and save positions. Raises what the position store raises."""
        for executor in self._streams.executors.values():
            executor.handle(Stopped())
        self._tasks.cancel_all()
        self._saver.stop()
