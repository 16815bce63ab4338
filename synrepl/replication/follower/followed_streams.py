"""FollowedStreams: the streams of a follower, each with the executor that applies its facts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from synrepl.caches.registry import CacheRegistry
from synrepl.errors import ConfigError
from synrepl.replication.follower.clock import FollowerClock
from synrepl.replication.follower.events import FollowerEvents
from synrepl.replication.follower.executor import IFollowedServer, StreamExecutor
from synrepl.replication.follower.facts import decoder, untyped
from synrepl.replication.follower.history import AppliedPositions, ApplyPolicy, StreamHistory
from synrepl.replication.follower.position_saver import PositionSaver
from synrepl.replication.follower.states import Connected
from synrepl.replication.follower.stream import StreamMachine
from synrepl.replication.follower.updates import BatchSubscriber, FollowerEvent, Subscriber
from synrepl.replication.strategies import FollowStrategy
from synrepl.streams.batches import Batches
from synrepl.streams.catalog import takes
from synrepl.streams.origin import Origin
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import Dialect

MAX_UNKNOWN: Final = 1_000
"""The largest number of unknown stream names that are remembered: the peer chooses the names."""


@dataclass(eq=False, repr=False, kw_only=True)
class FollowedStreams:
    """Makes an executor for each stream that has a subscriber, a waiter or caches.

    The arguments are those of `follower.Follower`, some under other names. `follow` starts the work: before
    it no stream is followed.
    """

    table: StreamTable
    earliest: bool
    raw: bool
    canonical: bool
    external_position: Callable[[str, str], int] | None
    caches: CacheRegistry | None
    clock: FollowerClock
    saver: PositionSaver
    events: FollowerEvents

    def __post_init__(self) -> None:
        if (self.raw or self.canonical) and self.caches is not None:
            raise ConfigError("caches need typed rows: leave out `raw` and `canonical`, or the caches")
        if self.external_position is not None and self.caches is not None:
            raise ValueError(
                "a follower cannot have both `external_position` and `caches`: the caches would miss external"
                " facts; leave one out"
            )
        # Streams whose facts a log does not take from a follower are as unknown to it.
        self.table = StreamTable(stream for stream in self.table if not self._is_closed(stream.name))
        self.executors: dict[str, StreamExecutor] = {}
        self.batches: Batches[bytes] = Batches()
        self._server: IFollowedServer | None = None
        self._subscribers: list[Subscriber] = []
        self._unknown: set[str] = set()

    def follow(self, server: IFollowedServer) -> None:
        """Let `server` serve the executors, and follow the streams that invalidate caches."""
        self._server = server
        self.follow_caches()

    def subscribe(self, stream: Stream[Any], subscriber: Subscriber) -> None:
        """Call `subscriber` with each fact of a stream. Raises `ConfigError` if the store refuses."""
        self.saver.check_subscriber(subscriber)
        self.executor(stream).subscribe(subscriber)
        self.follow_caches()

    def subscribe_batches(self, stream: Stream[Any], subscriber: BatchSubscriber, max_facts: int) -> None:
        """Call `subscriber` with the facts of a stream in batches. Raises as `subscribe` does."""
        self.saver.check_subscriber(subscriber)
        self.executor(stream).subscribe_batches(subscriber, max_facts)
        self.follow_caches()

    def subscribe_to_all(self, subscriber: Subscriber) -> None:
        """Do `subscribe` for every stream of the table; with `raw`, for streams outside the table too."""
        self.saver.check_subscriber(subscriber)
        self._subscribers.append(subscriber)
        for stream in self.table:
            self.executor(stream).subscribe(subscriber)
        self.follow_caches()

    @property
    def is_everything(self) -> bool:
        """Whether all streams of the server are followed."""
        return bool(self._subscribers)

    def executor(self, stream: Stream[Any], *, asks: bool = True) -> StreamExecutor:
        """The executor that follows this stream. `asks`: request the stream if it is new on a connection."""
        found = self.executors.get(stream.name)
        if found is not None:
            return found
        if stream.name not in self.table:
            self.table = self.table | {stream}
        assert self._server is not None
        made = self.executors[stream.name] = self._make_executor(stream, self._server)
        self._server.stream_added(stream, made, asks=asks)
        return made

    def _make_executor(self, stream: Stream[Any], server: IFollowedServer) -> StreamExecutor:
        name, external = stream.name, self.external_position
        policy = ApplyPolicy(
            ordered=stream.ordered,
            monotonic=stream.monotonic,
            earliest=self.earliest,
            descends=stream.descends,
            ephemeral=stream.ephemeral,
            is_kept=self.canonical and stream.monotonic and not stream.ephemeral,
            resumes=self.canonical and bool(self.saver.saved),
            external_position=(lambda writer: external(name, writer)) if external is not None else None,
        )
        history = StreamHistory(policy, AppliedPositions(self.saver.saved.get(name, {})))
        machine = StreamMachine(name, history, self.batches, seconds=self.clock.seconds)
        has_caches = self.caches is not None and name in self.caches.streams
        return StreamExecutor(machine, server, self.caches if has_caches else None)

    def connected_event(self, stream: Stream[Any], dialect: Dialect, strategy: FollowStrategy) -> Connected:
        """Return the event that begins a connection for the executor of this stream."""
        return Connected(strategy, decoder(stream, dialect, raw=self.raw, canonical=self.canonical))

    def connect_caches(self, dialect: Dialect | None) -> None:
        """Let the caches drop what a connection of this release means (None: any); follow their streams."""
        if self.caches is None:
            return
        for name, sources in self.caches.connected(dialect).items():
            given, spoken = self.caches.vintage.name, dialect or "of any release"
            text = (
                f"the cache {name} may be stale: for {', '.join(sources)} the vintage {given} drops less of"
                f" it than Synapse {spoken}, which this connection speaks; leave the vintage out, or change a"
                " copy of synrepl.Vintage.of(...)"
            )
            self.events.emit(FollowerEvent(kind="error", stream="caches", text=text))
        self.follow_caches()

    def follow_caches(self) -> None:
        """Follow the streams that invalidate caches."""
        if self.caches is None:
            return
        names = self.caches.streams
        for stream in [stream for stream in self.table if stream.name in names]:
            executor = self.executor(stream)
            if not executor.machine.history.has_caches:
                # The caches were declared later and missed this stream's facts until now.
                executor.attach_caches(self.caches)
                self.caches.invalidate_stream(stream.name)

    def _is_closed(self, name: str) -> bool:
        """Whether this follower stores facts in a log, and the stream takes none from such a follower."""
        return self.canonical and not takes(name, Origin.SOURCE)

    def unfollowed(self, name: str, rows: int) -> StreamExecutor | None:
        """Return the executor for `rows` rows of a stream that is not followed yet; None to ignore them.

        The first rows of an unknown stream are reported.
        """
        if self._is_closed(name):
            self.events.facts_refused(name, rows)
            return None
        if name in self.table or name in self._unknown or len(self._unknown) >= MAX_UNKNOWN:
            return None
        if self.raw and self._subscribers:
            executor = self.executor(untyped(name), asks=False)
            for subscriber in self._subscribers:
                executor.subscribe(subscriber)
            return executor
        self._unknown.add(name)
        text = f"ignoring the rows of stream {name}: this follower does not know it"
        self.events.emit(FollowerEvent(kind="error", stream=name, text=text))
        return None

    def positions(self) -> dict[str, dict[str, int]]:
        """The applied positions, by stream and writer (`Follower.positions`)."""
        reported = {name: one.machine.positions.reported for name, one in self.executors.items()}
        return {name: dict(tokens) for name, tokens in reported.items() if tokens}

    def position(self, name: str, writer: str) -> int:
        """The applied position of one writer, as in `positions`; 0 if there is none."""
        executor = self.executors.get(name)
        return 0 if executor is None else executor.machine.positions.reported.get(writer, 0)

    def applied(self, name: str) -> Mapping[str, int]:
        """The applied positions of a stream that is followed, by writer."""
        return self.executors[name].machine.positions.reported

    @property
    def is_rewinding(self) -> bool:
        """Whether any stream has yet to go back to what the server has."""
        return any(one.machine.is_rewinding for one in self.executors.values())
