"""Declared streams: their declarations as people write them, and the table of the streams of a daemon."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from synrepl.errors import ConfigError
from synrepl.streams.declaration import Declaration, difference, stream_of
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.text import printable


class StreamBody(msgspec.Struct, forbid_unknown_fields=True):
    """A declaration as people write it: only the name is required."""

    name: str
    key: str | list[str] = []
    kind: Literal["kept", "ephemeral"] = "kept"
    columns: dict[str, str] | None = None
    writers: list[str] = []

    @classmethod
    def of(cls, declared: Declaration) -> "StreamBody":
        """Return a declaration as people write it."""
        return msgspec.convert(declared, cls, from_attributes=True)

    def declaration(self) -> Declaration:
        """Return the checked declaration. Raises `ConfigError`."""
        if self.name in StreamTable.default():
            raise ConfigError(f"{self.name} is a stream of Synapse or of synrepl: choose another name")
        try:
            declared = Declaration(
                name=self.name,
                key=[self.key] if isinstance(self.key, str) else self.key,
                kind=self.kind,
                columns=self.columns,
                writers=sorted(set(self.writers)),
            )
        except ValueError as error:
            raise ConfigError(f"stream {printable(self.name)}: {error}") from error
        stream_of(declared)  # Python itself refuses some names of columns.
        return declared


def parse_declarations(value: Any) -> tuple[Declaration, ...]:
    """Parse the setting `streams`: a table of names and declarations. Raises `ConfigError`."""
    if value in (None, "", (), {}):
        return ()
    if not isinstance(value, Mapping):
        raise ConfigError(f"must be a table of names and declarations, not {value!r}")
    found = []
    for name, given in value.items():
        if not isinstance(given, Mapping | None):
            raise ConfigError(f"has {given!r} for {name}, which is not a table with `key`, `columns` ...")
        try:
            found.append(msgspec.convert({**(given or {}), "name": name}, StreamBody).declaration())
        except (msgspec.ValidationError, ConfigError) as error:
            raise ConfigError(f"has a bad declaration of {printable(str(name))}: {error}") from error
    return tuple(found)


def undeclared(known: Iterable[Declaration], wanted: Iterable[Declaration]) -> list[Declaration]:
    """Return the declarations in `wanted` that a daemon with the declarations `known` lacks.

    Raises `ConfigError` if it has one of these streams with another declaration, which no request can change.
    """
    by_name = {one.name: one for one in known}
    missing = []
    for one in wanted:
        if one.name not in by_name:
            missing.append(one)
        elif why := difference(by_name[one.name], one):
            raise ConfigError(f"the daemon has another declaration of {one.name}, with {why}")
    return missing


class DaemonStreams(StreamTable):
    """The streams of a daemon: those it starts with, and declared ones, which can be added and removed."""

    __slots__ = ()

    def add(self, stream: Stream[Any]) -> None:
        """Add a stream. Raises `ConfigError` if the table has one of this name."""
        if stream.name in self._by_name:
            raise ConfigError(f"cannot declare {stream.name}: there is a stream of this name already")
        self._by_name[stream.name] = stream

    def remove(self, name: str) -> None:
        """Remove a declared stream, as another log has replaced the daemon's. Raises KeyError if missing."""
        del self._by_name[name]
