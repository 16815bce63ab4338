"""The settings of the homeserver: its files, which are watched, and its tables, which facts are read from."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from synrepl.base.settings import paths, setting
from synrepl.errors import ConfigError
from synrepl.homeserver.tables.layout import TableStream, table_streams
from synrepl.ingest.settings import IngestSettings
from synrepl.storage.settings import parse_database


def parse_tables(value: Any) -> tuple[TableStream, ...]:
    """Parse the streams that are read from tables, without a default writer."""
    return () if value in ((), [], None) else tuple(table_streams(value, default_writer=""))


@dataclasses.dataclass(frozen=True, kw_only=True)
class HomeserverSettings(IngestSettings):
    """What this daemon knows of a homeserver. In tables without writers, all rows are its own."""

    homeserver: tuple[Path, ...] = setting(
        (),
        "A configuration file of the homeserver, or a directory of them, to watch: what is written, announced"
        " and received (synrepl inspect). It adds no writes and no sources. May be repeated.",
        parse=paths,
        metavar="PATH",
        kind="list",
        example="[/etc/matrix-synapse/homeserver.yaml]",
    )
    homeserver_workers: tuple[Path, ...] = setting(
        (),
        "The configuration file of a worker of `homeserver`, or a directory of them. May be repeated.",
        parse=paths,
        metavar="PATH",
        kind="list",
        example="[/etc/matrix-synapse/workers]",
    )
    table_streams: tuple[TableStream, ...] = setting(
        (),
        "The streams whose facts are rows of the homeserver's tables: a list of `stream`, `table`, `row` ...",
        parse=parse_tables,
        metavar="LIST",
        kind="file",
        example="[{stream: push_rules, table: push_rules_stream, row: [user_id],"
        " sequence: push_rules_stream_sequence}]",
    )
    tables_database: str | None = setting(
        None,
        "The database with the tables of `table_streams`. None: the database of the log.",
        parse=parse_database,
        metavar="URL",
        example="postgresql://synrepl@localhost/synapse?passfile=/etc/synrepl/pgpass",
    )

    def __post_init__(self) -> None:
        named = tuple(
            msgspec.structs.replace(one, default_writer=one.default_writer or self.instance_name)
            for one in self.table_streams
        )
        object.__setattr__(self, "table_streams", named)  # frozen

    @property
    def followed_tables(self) -> list[TableStream]:
        """The tables to read live facts from, without those that only fill gaps.

        On a channel, a stream that this daemon publishes is read for the published writers only. Facts of
        other writers come from the channel: for some streams these writers store no position in the database.
        """
        followed = [one for one in self.table_streams if not one.for_catch_up]
        if not self.has_channel:
            return followed
        published: dict[str, tuple[str, ...]] = {}
        for one in self.channel_writes:
            published[one.stream] = (*published.get(one.stream, ()), one.writer or self.instance_name)
        return [msgspec.structs.replace(one, only=published.get(one.stream, ())) for one in followed]

    def check(self) -> None:
        """Raise `ConfigError` if tables only fill gaps, and nothing brings what they have gaps in."""
        if any(one.for_catch_up for one in self.table_streams) and not (self.has_channel or self.follow):
            raise ConfigError(
                "table_streams: a table with `catch_up: true` only fills gaps, and live facts have no source:"
                " set --redis or --follow, or remove catch_up"
            )


def homeserver_settings(settings: Any) -> HomeserverSettings:
    """Return the settings of a daemon as those of this room, which they are where it is installed."""
    assert isinstance(settings, HomeserverSettings)
    return settings
