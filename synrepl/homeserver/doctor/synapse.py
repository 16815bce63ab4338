"""The tables and sequences of a database, and those of the streams of a Synapse database.

The names are those of releases up to 1.163 (docs/reference/peers.md#ids). The examination skips what an older
database lacks.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.schema import is_older_log
from synrepl.storage.sql import Flavor

LOG: Final = {"facts", "log_header", "positions"}
"""Tables that every log has."""


class OwnedSequence(msgspec.Struct, frozen=True):
    """A sequence that gives the numbers of a column."""

    sequence: str
    table: str
    column: str


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of every table (on PostgreSQL not the log's), the sequences, and whether there is a log.

    `has_older_log`: there is the log of a release before 26.11.0, which this release cannot read.
    `indexed` are tables and columns with which an index begins: the highest value is found without a scan.
    `owned` are the sequences from which a column takes its default or identity.
    """

    tables: Mapping[str, AbstractSet[str]]
    sequences: AbstractSet[str]
    has_log: bool
    has_older_log: bool
    indexed: AbstractSet[tuple[str, str]] = frozenset()
    owned: Sequence[OwnedSequence] = ()


def read_catalog(cursor: Any, flavor: Flavor) -> Catalog:
    """Read the catalog, including objects that this user may not read, so that they can be reported."""
    if flavor == "postgresql":
        cursor.execute(
            "SELECT space.nspname, relation.relname, relation.relkind::text, field.attname"
            " FROM pg_class AS relation"
            " JOIN pg_namespace AS space ON space.oid = relation.relnamespace"
            " JOIN pg_attribute AS field ON field.attrelid = relation.oid"
            " WHERE relation.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')"
            " AND field.attnum > 0 AND NOT field.attisdropped"
            " AND (space.nspname = ANY (current_schemas(false)) OR space.nspname = 'synrepl')"
        )
    else:
        cursor.execute(
            "SELECT '', tables.name, 'r', columns.name FROM sqlite_master AS tables,"
            " pragma_table_info(tables.name) AS columns WHERE tables.type = 'table'"
        )
    tables: dict[str, set[str]] = {}
    sequences: set[str] = set()
    of_log: set[str] = set()
    for schema, name, kind, column in cursor.fetchall():
        if kind == "S":
            if schema != "synrepl":
                sequences.add(name)
        elif schema == "synrepl":
            # The log's tables are in their own schema, since their names are common.
            of_log.add(name)
        else:
            tables.setdefault(name, set()).add(column)
    if flavor == "sqlite" and "digest" in tables.get("facts", ()):
        of_log = set(tables)
    return Catalog(
        tables=tables,
        sequences=sequences,
        has_log=of_log >= LOG,
        has_older_log=is_older_log(of_log),
        indexed=_indexed(cursor, flavor),
        owned=_owned(cursor) if flavor == "postgresql" else (),
    )


def _owned(cursor: Any) -> list[OwnedSequence]:
    # A sequence depends on its column (serial, identity), or the column's default on the sequence.
    cursor.execute(
        "SELECT DISTINCT counter.relname, relation.relname, field.attname"
        " FROM pg_class AS counter JOIN pg_namespace AS space ON space.oid = counter.relnamespace"
        " JOIN (SELECT objid AS counter, refobjid AS relation, refobjsubid AS field FROM pg_depend"
        " WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass"
        " AND deptype IN ('a', 'i') AND refobjsubid > 0"
        " UNION SELECT used.refobjid, given.adrelid, given.adnum FROM pg_attrdef AS given"
        " JOIN pg_depend AS used ON used.classid = 'pg_attrdef'::regclass AND used.objid = given.oid"
        " AND used.refclassid = 'pg_class'::regclass) AS owned ON owned.counter = counter.oid"
        " JOIN pg_class AS relation ON relation.oid = owned.relation"
        " JOIN pg_namespace AS its ON its.oid = relation.relnamespace"
        " JOIN pg_attribute AS field ON field.attrelid = relation.oid AND field.attnum = owned.field"
        " JOIN pg_sequence AS given ON given.seqrelid = counter.oid AND given.seqincrement > 0"
        " WHERE counter.relkind = 'S' AND relation.relkind IN ('r', 'p')"
        " AND field.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)"
        " AND space.nspname = ANY (current_schemas(false)) AND its.nspname = ANY (current_schemas(false))"
    )
    return [OwnedSequence(*names) for names in cursor.fetchall()]


def _indexed(cursor: Any, flavor: Flavor) -> set[tuple[str, str]]:
    if flavor == "postgresql":
        cursor.execute(
            "SELECT relation.relname, field.attname FROM pg_index AS an_index"
            " JOIN pg_class AS relation ON relation.oid = an_index.indrelid"
            " JOIN pg_attribute AS field ON field.attrelid = relation.oid"
            " AND field.attnum = an_index.indkey[0]"
            " JOIN pg_namespace AS space ON space.oid = relation.relnamespace"
            " WHERE an_index.indisvalid AND an_index.indpred IS NULL"
            " AND space.nspname = ANY (current_schemas(false))"
        )
    else:
        cursor.execute(
            "SELECT tables.name, columns.name FROM sqlite_master AS tables,"
            " pragma_index_list(tables.name) AS indexes, pragma_index_info(indexes.name) AS columns"
            " WHERE tables.type = 'table' AND columns.seqno = 0 AND NOT indexes.partial"
            " UNION SELECT tables.name, columns.name FROM sqlite_master AS tables,"
            " pragma_table_info(tables.name) AS columns"
            " WHERE tables.type = 'table' AND columns.pk = 1 AND upper(columns.type) = 'INTEGER'"
        )
    return {(table, column) for table, column in cursor.fetchall()}


MARKS: Final = ("schema_version", "applied_schema_deltas", "stream_positions")
"""Only a Synapse database has all of these tables."""

OF_STATE: Final = "state_groups"
"""The table that a homeserver's other database has, if groups of states are in one of their own."""


def is_homeservers(catalog: Catalog) -> bool:
    """Whether it is a homeserver's database, or the one of its groups of states."""
    *always, positions = MARKS
    tables = catalog.tables.keys()
    return tables >= {*always} and not tables.isdisjoint((positions, OF_STATE))


def raises_at_start(catalog: Catalog) -> bool:
    """Whether 1.109 or a newer release has been there, which raises a sequence that is behind rows.

    It has made this sequence; older releases refuse to start.
    """
    return "pushers_sequence" in catalog.sequences


def _stream(name: str, sequence: str, *tables: str, negative: bool = False) -> IdStream:
    """Each of `tables` is a name, or ``name.id_column`` if the column is not ``stream_id``."""
    parts = [(table.partition(".")[0], table.partition(".")[2] or "stream_id") for table in tables]
    return IdStream(
        name=name,
        sequence=sequence,
        tables=tuple(IdTable(name=table, id_column=column) for table, column in parts),
        negative=negative,
    )


STREAMS: Final = (
    _stream(
        "events",
        "events_stream_seq",
        "events.stream_ordering",
        "current_state_delta_stream",
        "ex_outlier_stream.event_stream_ordering",
    ),
    _stream(
        "backfill",
        "events_backfill_stream_seq",
        "events.stream_ordering",
        "ex_outlier_stream.event_stream_ordering",
        negative=True,
    ),
    _stream(
        "account_data", "account_data_sequence", "room_account_data", "room_tags_revisions", "account_data"
    ),
    _stream("caches", "cache_invalidation_stream_seq", "cache_invalidation_stream_by_instance"),
    _stream(
        "device_lists_stream",
        "device_lists_sequence",
        "device_lists_stream",
        "user_signature_stream",
        "device_lists_outbound_pokes",
        "device_lists_changes_in_room",
        "device_lists_remote_pending",
        "device_lists_changes_converted_stream_position",
    ),
    _stream("e2e_cross_signing_keys", "e2e_cross_signing_keys_sequence", "e2e_cross_signing_keys"),
    _stream("presence_stream", "presence_stream_sequence", "presence_stream"),
    _stream("profile_updates", "profile_updates_sequence", "profile_updates"),
    _stream("push_rules_stream", "push_rules_stream_sequence", "push_rules_stream"),
    _stream("pushers", "pushers_sequence", "pushers.id", "deleted_pushers"),
    _stream("quarantined_media", "quarantined_media_id_seq", "quarantined_media_changes"),
    _stream("receipts", "receipts_sequence", "receipts_linearized"),
    _stream("sticky_events", "sticky_events_sequence", "sticky_events"),
    _stream("thread_subscriptions", "thread_subscriptions_sequence", "thread_subscriptions"),
    _stream("to_device", "device_inbox_sequence", "device_inbox", "device_federation_outbox"),
    _stream(
        "un_partial_stated_event_stream",
        "un_partial_stated_event_stream_sequence",
        "un_partial_stated_event_stream",
    ),
    _stream(
        "un_partial_stated_room_stream",
        "un_partial_stated_room_stream_sequence",
        "un_partial_stated_room_stream",
    ),
)
