"""Table layouts: the tables of a stream and the templates of its rows, from the configuration."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from synrepl.errors import ConfigError
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.worker_database import identifier
from synrepl.streams.catalog import takes
from synrepl.streams.origin import Origin

Template = Any
"""The template of one row: the name of a column, None, ``{"json": column}`` for a column with JSON text,
``{"value": anything}`` for a constant, or a list of these.
"""

TABLE_KEYS: Final = {"table", "id_column", "writer_column", "row"}
STREAM_KEYS: Final = {
    "stream",
    "tables",
    "sequence",
    "position",
    "writers",
    "negative",
    "start",
    "catch_up",
    *TABLE_KEYS,
}


class SourceTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table: its ids and writers, and the template of its rows."""

    ids: IdTable
    row: tuple[Template, ...]


class TableStream(msgspec.Struct, frozen=True, kw_only=True):
    """A table-backed stream. `ids` describes its ids and positions in the database.

    With `from_first` a new log also reads the rows already in the tables. `default_writer` is the writer of
    rows in tables without a writer column. With `for_catch_up` live facts come from another source, and only
    missed ones are read from the tables. `only` are the writers whose facts come from the tables, while those
    of others come from another source; empty means all writers.
    """

    stream: str
    ids: IdStream
    tables: tuple[SourceTable, ...]
    default_writer: str
    from_first: bool = False
    for_catch_up: bool = False
    only: tuple[str, ...] = ()


def table_streams(config: Any, *, default_writer: str) -> list[TableStream]:
    """Parse the setting `table_streams`. Raises `ConfigError`.

    A list of streams. Each has `stream`, and may have `sequence`, `position`, `writers`, `negative`, `start`
    and `catch_up`. It also has `table` and `row`, and may have `id_column` and `writer_column`; or it has
    `tables`, a list in which each table has these four.
    """
    if not isinstance(config, list):
        raise ConfigError(f"must be a list of streams and their tables, not {config!r}")
    found = [_stream(one, default_writer) for one in config]
    names = [one.stream for one in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"has the stream {name} more than once; name all tables of this stream under one `tables`"
            )
    return found


def _stream(config: Any, default_writer: str) -> TableStream:
    if not isinstance(config, Mapping) or not isinstance(config.get("stream"), str):
        raise ConfigError(f"needs the name of a stream, `stream: NAME`, in {config!r}")
    name = config["stream"]
    if not takes(name, Origin.SOURCE):
        raise ConfigError(f"(stream {name}): its facts come from this daemon alone, not from tables")
    _check_keys(name, config, STREAM_KEYS)
    several = config.get("tables", [{key: config[key] for key in TABLE_KEYS if key in config}])
    if not isinstance(several, list) or not several:
        raise ConfigError(f"(stream {name}): `tables` must be a list of one or more tables, not {several!r}")
    tables = tuple(_table(name, one) for one in several)
    writers = config.get("writers", [])
    if not isinstance(writers, list) or not all(isinstance(writer, str) for writer in writers):
        raise ConfigError(f"(stream {name}): `writers` must be a list of instance names, not {writers!r}")
    start = config.get("start", "latest")
    if start not in ("latest", "earliest"):
        raise ConfigError(f"(stream {name}): `start` must be latest or earliest, not {start!r}")
    negative, catch_up = (_flag(name, config, key) for key in ("negative", "catch_up"))
    try:
        ids = IdStream(
            name=str(config.get("position", name)),
            sequence=config.get("sequence", ""),
            tables=tuple(table.ids for table in tables),
            writers=tuple(writers),
            negative=negative,
        )
    except ConfigError as error:
        raise ConfigError(f"(stream {name}): `sequence`: {error}") from error
    return TableStream(
        stream=name,
        ids=ids,
        tables=tables,
        default_writer=default_writer,
        from_first=start == "earliest",
        for_catch_up=catch_up,
    )


def _flag(stream: str, config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"(stream {stream}): `{key}` must be true or false, not {value!r}")
    return value


def _table(stream: str, config: Any) -> SourceTable:
    if not isinstance(config, Mapping) or "table" not in config or "row" not in config:
        raise ConfigError(f"(stream {stream}): each table needs `table: NAME` and `row: [COLUMN, ...]`")
    _check_keys(stream, config, TABLE_KEYS)
    try:
        ids = IdTable(
            name=config["table"],
            id_column=config.get("id_column", "stream_id"),
            writer_column=config.get("writer_column", "instance_name"),
        )
        if not isinstance(config["row"], list) or not config["row"]:
            raise ConfigError(f"`row` must be a list of columns, not {config['row']!r}")
        for column in columns_of(config["row"]):
            identifier(column)
    except ConfigError as error:
        raise ConfigError(f"(stream {stream}): {error}") from error
    return SourceTable(ids=ids, row=tuple(config["row"]))


def columns_of(template: Template) -> Iterator[str]:
    """The columns that a template names, in order. Raises `ConfigError` if it is not a template."""
    match template:
        case str():
            yield template
        case None:
            pass
        case {"json": str(column), **rest} if not rest:
            yield column
        case {"value": _, **rest} if not rest:
            pass
        case [*parts]:
            for part in parts:
                yield from columns_of(part)
        case _:
            raise ConfigError(
                f"`row` may have columns, null, {{json: COLUMN}}, {{value: ...}} and lists of these,"
                f" not {template!r}"
            )


def _check_keys(stream: str, config: Mapping[str, Any], known: set[str]) -> None:
    for key in config:
        if key not in known:
            raise ConfigError(
                f"(stream {stream}): there is no setting {key}; the settings are {', '.join(sorted(known))}"
            )
