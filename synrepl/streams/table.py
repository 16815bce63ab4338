"""Stream tables: immutable sets of streams, so that a worker can add its own without affecting others."""

from collections.abc import Iterable, Iterator
from typing import Any

from synrepl.errors import ConfigError, UnknownStream
from synrepl.streams.stream import Stream
from synrepl.wire.dialect import Dialect


class StreamTable:
    """Streams by name, in the order in which positions are announced. Immutable, unlike `DaemonStreams`.

    ``|`` with any iterable of streams makes a new table. Raises `ConfigError` for two streams of one name;
    ``table[name]`` raises `UnknownStream`.

    >>> from synrepl.streams import RECEIPTS, TYPING
    >>> table = StreamTable([TYPING]) | {RECEIPTS}
    >>> table["typing"], "receipts" in table, len(StreamTable.default()) > len(table)
    (Stream('typing'), True, True)
    """

    __slots__ = ("_by_name",)

    def __init__(self, streams: Iterable[Stream[Any]] = ()) -> None:
        self._by_name: dict[str, Stream[Any]] = {}
        for stream in streams:
            if stream.name in self._by_name:
                raise ConfigError(f"there are two streams named {stream.name}")
            self._by_name[stream.name] = stream

    @classmethod
    def default(cls) -> "StreamTable":
        """All streams of the known releases of Synapse, and the streams of synrepl itself."""
        from synrepl.streams import catalog  # Not at the top: a table does not need the catalog.

        return cls(catalog.ALL)

    def __or__(self, more: Iterable[Stream[Any]]) -> "StreamTable":
        if isinstance(more, (set, frozenset)):
            more = sorted(more, key=lambda stream: stream.name)  # Sets have no order; tables need one.
        return StreamTable([*self, *more])

    def __getitem__(self, name: str) -> Stream[Any]:
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownStream(name, list(self._by_name)) from None

    def get(self, name: str) -> Stream[Any] | None:
        """The stream of this name, or None."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Stream[Any]]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, stream: object) -> bool:
        """Whether the table has this stream, or a stream of this name."""
        if isinstance(stream, Stream):
            return self._by_name.get(stream.name) is stream
        return stream in self._by_name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamTable) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"StreamTable({', '.join(self._by_name)})"

    def known_to(self, dialect: Dialect) -> list[Stream[Any]]:
        """The streams that a release has. Peers of the release receive nothing of other streams."""
        return [stream for stream in self if dialect.release in stream.span]
