"""WritePolicy: the streams that this process publishes on a shared channel, from the configuration."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synrepl.errors import ConfigError
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.wire.dialect import NEWEST

if TYPE_CHECKING:
    from synrepl.storage.log import Log

EVERYTHING: Final = "all"


class StreamWrite(msgspec.Struct, frozen=True):
    """A stream, or ``all``, that this process publishes as `writer` (empty: its instance name)."""

    stream: str
    writer: str = ""


def read_writes(value: Any) -> tuple[StreamWrite, ...]:
    """Parse the setting `redis_writes`. Raises `ConfigError`.

    It is a text of comma-separated names, or a list of names and of tables with `stream` and `writer`.
    """
    if value in (None, "", [], ()):
        return ()
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)):
        raise ConfigError(f"must be a list of streams, not {value!r}")
    parsed = [_parse_write(write) for write in entries]
    if len(set(parsed)) < len(parsed):
        raise ConfigError(f"names a stream twice: {value!r}")
    return tuple(parsed)


def _parse_write(entry: Any) -> StreamWrite:
    if isinstance(entry, Mapping):
        unknown = set(entry) - {"stream", "writer"}
        if unknown or "stream" not in entry:
            raise ConfigError(
                f"must be a list of names, or of tables with `stream` and `writer`, not {entry!r}"
            )
        return StreamWrite(
            stream=_parse_word(entry["stream"]), writer=_parse_word(entry.get("writer", "")) or ""
        )
    return StreamWrite(stream=_parse_word(entry.strip() if isinstance(entry, str) else entry))


def _parse_word(entry: Any) -> str:
    if not isinstance(entry, str) or (entry and entry.split() != [entry]):
        raise ConfigError(f"must name streams and writers in one word each, not {entry!r}")
    return entry


class WritePolicy:
    """Decides which appends are allowed while other processes publish on a shared channel.

    `own` are the streams and writers that this process publishes. Those in `tables` get their ids from the
    homeserver's database, the others from the log. Ids from the log are only safe if no other process writes
    the same stream, since ids determine the order. The stream ``caches`` has no order.
    """

    def __init__(
        self,
        writes: Collection[StreamWrite],
        *,
        instance: str,
        table: StreamTable,
        tables: Collection[str] = (),
    ) -> None:
        self._table = table
        # A worker's own streams are in its table too, but Synapse does not know them: their POSITIONs would
        # disconnect its processes (docs/reference/peers.md#redis-unknown).
        synapse = {stream.name for stream in StreamTable.default().known_to(NEWEST)}
        self._shared = frozenset(stream.name for stream in table if stream.name in synapse)
        self._tables = frozenset(tables)
        own: set[Writer] = set()
        for write in writes:
            names = sorted(self._shared - self._tables) if write.stream == EVERYTHING else [write.stream]
            for name in names:
                if name not in self._shared:
                    raise ConfigError(
                        f"redis_writes: Synapse does not know the stream {name}, so it cannot be"
                        " published on Synapse's channel"
                    )
                own.add(Writer(name, write.writer or instance))
        self.own = frozenset(own)
        self.exclusive = frozenset(
            name for name, _ in own if name not in self._tables and table[name].ordered
        )
        """The streams that no other process may write: they are ordered, and their ids come from the log."""

    def gives_ids(self, stream: str) -> bool:
        """Whether this daemon publishes the stream to other processes with ids from its own log."""
        return stream not in self._tables and any(stream == name for name, _ in self.own)

    def refusal(self, log: "Log", stream: str, writer: str) -> str:
        """Why facts of this stream and writer cannot be given tokens here; empty if they can."""
        if stream not in self._shared or stream in self._tables:
            return ""
        if (stream, writer) not in self.own:
            mine = sorted(name for own, name in self.own if own == stream)
            if mine:
                return f"other processes write it; this one may write it as {' and '.join(mine)} only"
            return (
                "other processes of the homeserver write it, on Redis or at the RESP port; name it in"
                " redis_writes, which rules both, to write it here as well"
            )
        if not self._table[stream].ordered:
            return ""
        others = sorted(
            other
            for other, token in log.positions(stream).items()
            if token > 0 and (stream, other) not in self.own
        )
        if others:
            return (
                f"{', '.join(others)} writes it too, so its ids must come from the database: describe its"
                " table in table_streams, and write to the table"
            )
        return ""
