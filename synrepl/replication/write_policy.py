"""Which streams this process tells on a shared channel: what the configuration says."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from synrepl.errors import ConfigError
from synrepl.ports.interfaces import ILog
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST

__all__ = ["StreamWrite", "WritePolicy", "read_writes"]

EVERYTHING: Final = "all"


class StreamWrite(msgspec.Struct, frozen=True):
    """A stream that this process tells on the channel, under the name `writer` (empty: its own)."""

    stream: str
    writer: str = ""


def read_writes(value: Any) -> tuple[StreamWrite, ...]:
    """What the setting `redis_writes` says: names with commas between, or a list of names and of tables with
    `stream` and `writer`. Raises `ConfigError`.
    """
    if value in (None, "", [], ()):
        return ()
    several = value.split(",") if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)):
        raise ConfigError(f"is a list of streams, not {value!r}")
    found = [_write(one) for one in several]
    if len(set(found)) < len(found):
        raise ConfigError(f"names a stream twice: {value!r}")
    return tuple(found)


def _write(given: Any) -> StreamWrite:
    if isinstance(given, Mapping):
        unknown = set(given) - {"stream", "writer"}
        if unknown or "stream" not in given:
            raise ConfigError(f"is a list of names, or of tables with `stream` and `writer`, not {given!r}")
        return StreamWrite(stream=_word(given["stream"]), writer=_word(given.get("writer", "")) or "")
    return StreamWrite(stream=_word(given.strip() if isinstance(given, str) else given))


def _word(given: Any) -> str:
    if not isinstance(given, str) or (given and given.split() != [given]):
        raise ConfigError(f"names streams and writers, each one word, not {given!r}")
    return given


class WritePolicy:
    """What may be written here while others tell their facts on a shared channel.

    `own` are the streams and writers that this process tells. Of these the ones in `tables` get their ids
    from the homeserver's database, the others from the log; which is only safe where nobody else writes the
    same stream, as ids tell the order. ``caches`` has none.
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
        # A worker's own streams are in its table, too; nobody else knows them.
        synapse = {stream.name for stream in StreamTable.default().known_to(NEWEST)}
        self._shared = frozenset(stream.name for stream in table if stream.name in synapse)
        self._tables = frozenset(tables)
        own: set[tuple[str, str]] = set()
        for one in writes:
            names = sorted(self._shared - self._tables) if one.stream == EVERYTHING else [one.stream]
            for name in names:
                if name not in self._shared:
                    raise ConfigError(
                        f"redis_writes: {name} is no stream that Synapse knows, so it never goes on its"
                        " channel"
                    )
                own.add((name, one.writer or instance))
        self.own = frozenset(own)

    def gives_ids(self, stream: str) -> bool:
        """Whether ids of this stream are the log's own, though others may hear them."""
        return stream not in self._tables and any(stream == name for name, _ in self.own)

    def refusal(self, log: ILog, stream: str, writer: str) -> str:
        """Why a fact of this stream cannot be given a token here; empty if it can."""
        if stream not in self._shared or stream in self._tables:
            return ""
        if (stream, writer) not in self.own:
            mine = sorted(name for own, name in self.own if own == stream)
            if mine:
                return f"its facts are heard from others; here it is written as {' and '.join(mine)} only"
            return "its facts are heard from others; name it in redis_writes to write it here as well"
        if not self._table[stream].ordered:
            return ""
        others = sorted(
            other
            for other, token in log.positions(stream).items()
            if token > 0 and (stream, other) not in self.own
        )
        if others:
            return (
                f"{', '.join(others)} writes it too, so its ids must come from their database: describe its"
                " table in table_streams, and write there"
            )
        return ""
