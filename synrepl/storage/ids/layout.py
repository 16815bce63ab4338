"""Where a stream's ids live: its sequence, its tables, who may write."""

import re

import msgspec

from synrepl.errors import ConfigError

__all__ = ["IdStream", "IdTable", "identifier"]

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_]{0,62})?")


def identifier(name: str) -> str:
    """The name of a table, column or sequence, which becomes part of a statement. `ConfigError` if it is
    none.
    """
    if not isinstance(name, str) or not IDENTIFIER.fullmatch(name):
        raise ConfigError(f"is the name of a table, column or sequence, not {name!r}")
    return name


class IdTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that holds facts: the column of their ids, and that of who wrote them, if there is one."""

    name: str
    id_column: str = "stream_id"
    writer_column: str | None = "instance_name"

    def __post_init__(self) -> None:
        for given in (self.name, self.id_column, self.writer_column):
            if given is not None:
                identifier(given)


class IdStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as the database knows it.

    `name` is its name in ``stream_positions``. `writers` are the instances that may write it; none means
    whoever does, in one process at a time, and then no positions are stored. A reader may leave out the name
    of the sequence. `negative`: ids go down from -2, as those of backfilled events. On SQLite the sequence is
    a row of a table of ours.
    """

    name: str
    sequence: str
    tables: tuple[IdTable, ...]
    writers: tuple[str, ...] = ()
    negative: bool = False

    def __post_init__(self) -> None:
        if self.sequence:
            identifier(self.sequence)

    @property
    def sign(self) -> int:
        """What turns an id into a number that goes up, and back."""
        return -1 if self.negative else 1

    def is_writer(self, instance: str) -> bool:
        """Whether this instance may write the stream."""
        return not self.writers or instance in self.writers
