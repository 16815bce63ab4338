"""ServerEpochs: the epoch of the log that a follower follows, and the facts that a server's log lacks."""

from synrepl.errors import RemoteProtocolError
from synrepl.replication.follower.events import FollowerEvents
from synrepl.replication.follower.followed_streams import FollowedStreams
from synrepl.replication.follower.position_saver import PositionSaver
from synrepl.replication.follower.updates import FollowerEvent
from synrepl.streams.writer import Writer
from synrepl.wire.commands import EpochNotice, Rewind
from synrepl.wire.extension import EpochMark


class ServerEpochs:
    """Rewinds the streams to what the server's log has, and saves its epoch once that is done."""

    def __init__(self, streams: FollowedStreams, saver: PositionSaver, events: FollowerEvents) -> None:
        self.entered: EpochMark | None = None
        """The server's epoch, while rewinds wait: until they are done, the former one must be named again."""
        self._streams = streams
        self._saver = saver
        self._events = events
        self._rewound: set[Writer] = set()
        """The streams and writers that the server has compared on this connection."""

    def rewind(self, command: Rewind) -> None:
        """Rewind a writer to the token up to which the server has its facts."""
        self._rewound.add(Writer(command.stream, command.instance))
        executor = self._streams.executors.get(command.stream)
        if executor is not None:
            executor.handle(command)

    def enter(self, command: EpochNotice) -> None:
        """Enter the epoch of the server. Raises RemoteProtocolError if the command names none."""
        mark = EpochMark.parse(command.mark)
        if mark is None:
            raise RemoteProtocolError("EPOCH does not have the epochs of a log")
        streams, known = self._streams, self._saver.epoch
        if known is not None and known.history != mark.history:
            text = (
                f"the server has another log ({mark.history}) than the one that was followed"
                f" ({known.history}): where tokens are equal, its facts count as known"
            )
            self._events.emit(FollowerEvent(kind="error", text=text))
        elif known is not None and known != mark:
            # The server has compared. Of a writer that it did not name, its log has no fact at all.
            for name, executor in streams.executors.items():
                if not streams.table[name].ephemeral:
                    for writer in set(executor.machine.positions.tokens):
                        if (name, writer) not in self._rewound:
                            executor.handle(Rewind(stream=name, instance=writer, token=0))
        if known is None or known.history == mark.history:
            for name, executor in streams.executors.items():
                executor.machine.history.is_compared = known is not None and not streams.table[name].ephemeral
        self._rewound.clear()
        self.entered = mark
        self.complete()

    def complete(self) -> None:
        """Note the epoch of the server once all rewinds are done."""
        if self.entered is None or self._streams.is_rewinding:
            return
        if self.entered != self._saver.epoch:
            self._saver.epoch = self.entered
            self._saver.save_soon()
        self.entered = None

    def disconnected(self) -> None:
        """Forget what the server said, unless all of it is done."""
        self.complete()
        self.entered = None
        self._rewound.clear()
