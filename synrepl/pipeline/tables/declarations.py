"""Declarations of the tables: the stream, the key and the other columns of each, in SQL.

A table has a row for each key. The other columns are aggregates of the rows with this key, in the order of
the log: the ``first`` or ``last`` value, or the ``sum``. The new value of an aggregate follows from its old
value and the new rows, so a table is updated without reading old rows of the stream.
"""

from typing import Final, Literal

import msgspec

POSITION: Final = "struct(serial, seq)"
"""The SQL by which rows are in the order of the log."""


class TableColumn(msgspec.Struct, frozen=True):
    """A column: its name, the SQL of its value in a row of the stream, and how the values of a key combine.

    An optional key may be null.
    """

    name: str
    sql: str
    how: Literal["key", "optional key", "first", "last", "sum"]

    @property
    def is_key(self) -> bool:
        """Whether the column is part of the key."""
        return self.how.endswith("key")

    @property
    def aggregate(self) -> str:
        """The SQL aggregate that computes this column from all rows of one key."""
        function = {"first": "min_by", "last": "max_by"}.get(self.how)
        return (
            f"CAST(sum({self.sql}) AS bigint)" if function is None else f"{function}({self.sql}, {POSITION})"
        )

    @property
    def match(self) -> str:
        """The SQL condition that this column is equal in a row `t` of the table and a computed row `s`."""
        same = f"t.{self.name} = s.{self.name}"
        either = f"({same} OR (t.{self.name} IS NULL AND s.{self.name} IS NULL))"
        return either if self.how == "optional key" else same

    @property
    def update(self) -> str:
        """The SQL of the new value: from the row `t` of the table, and `s`, computed from the new rows."""
        return {"first": "t.{0}", "last": "s.{0}", "sum": "t.{0} + s.{0}"}[self.how].format(self.name)


class TableDeclaration(msgspec.Struct, frozen=True):
    """A table of the rows of a `stream` for which the SQL condition `rows` is true; `about` describes it.

    The SQL uses the columns of the stream (`synrepl.pipeline.typed.columns`) and some of the archive, and
    functions that both Spark and DuckDB have (`Driver.query`). `order` sorts the rows of the table.
    """

    name: str
    about: str
    stream: str
    columns: tuple[TableColumn, ...]
    order: tuple[str, ...]
    rows: str = "true"

    def select(self, source: str) -> str:
        """Return the query for the rows of the table, in order, from the typed rows of the stream.

        Rows without a key, such as those that do not fit the stream, are left out.
        """
        keys = [column for column in self.columns if column.is_key]
        values = [f"{column.aggregate} AS {column.name}" for column in self.columns if not column.is_key]
        computed = [f"{column.sql} AS {column.name}" for column in keys if column.sql != column.name]
        source = f"SELECT {', '.join(['*', *computed])} FROM {source} WHERE {self.rows}"  # noqa: S608  # constants
        present = " AND ".join(f"{column.name} IS NOT NULL" for column in keys if column.how == "key")
        names = [column.name for column in keys]
        selected, grouped = ", ".join([*names, *values]), ", ".join(names)
        return (
            f"SELECT {selected} FROM ({source}) WHERE {present} GROUP BY {grouped}"  # noqa: S608
            f" ORDER BY {', '.join(self.order)}"
        )


SENT: Final = "get_json_object(data, '$.ts')"
# Of other texts, such as 1e3, engines make different numbers.
SENT_MS: Final = f"CASE WHEN regexp_like({SENT}, '^-?[0-9]+$') THEN try_cast({SENT} AS bigint) END"


def key(name: str, sql: str = "") -> TableColumn:
    """Return a column of the key."""
    return TableColumn(name, sql or name, "key")


def last(name: str, sql: str = "") -> TableColumn:
    """Return a column with the last value."""
    return TableColumn(name, sql or name, "last")


def count(name: str, condition: str = "true") -> TableColumn:
    """Return a column that counts the rows with a condition."""
    return TableColumn(name, f"CAST(coalesce({condition}, false) AS bigint)", "sum")


FIRST_AT: Final = TableColumn("first_at", "committed_at", "first")
LAST_AT: Final = last("last_at", "committed_at")
# Up to the year 9999: other values are errors of their senders.
READ_AT: Final = last(
    "read_at", f"CASE WHEN {SENT_MS} BETWEEN 0 AND 253402300799999 THEN timestamp_millis({SENT_MS}) END"
)
USER: Final = key("user_id")
ROOM: Final = key("room_id")
CHANGES: Final = count("changes")

DECLARATIONS: Final = (
    TableDeclaration(
        "devices",
        "Users whose devices changed. The stream tells the user, not the device.",
        "device_lists",
        (USER, CHANGES, count("signature_changes", "is_signature"), FIRST_AT, LAST_AT),
        order=("user_id",),
        rows="user_id LIKE '@%'",  # Old releases also name servers here.
    ),
    TableDeclaration(
        "receipts",
        "The current receipt of each user in each room and thread.",
        "receipts",
        (
            *(ROOM, USER, key("receipt_type"), TableColumn("thread_id", "thread_id", "optional key")),
            *(last("event_id"), READ_AT, LAST_AT),
        ),
        order=("room_id", "user_id"),
    ),
    TableDeclaration(
        "read_positions",
        "How far each user has read each room: the last receipt of any type and thread.",
        "receipts",
        (ROOM, USER, last("event_id"), last("thread_id"), READ_AT, count("receipts"), FIRST_AT, LAST_AT),
        order=("room_id", "user_id"),
    ),
    TableDeclaration(
        "push_rules",
        "Users whose push rules changed. The stream tells the user, not the rules.",
        "push_rules",
        (USER, CHANGES, FIRST_AT, LAST_AT),
        order=("user_id",),
    ),
    TableDeclaration(
        "room_activity",
        "Events of each room and hour, by the time at which the daemon committed them.",
        "events",
        (
            *(key("hour", "date_trunc('HOUR', committed_at)"), ROOM, count("events", "kind = 'ev'")),
            count("messages", "kind = 'ev' AND type IN ('m.room.message', 'm.room.encrypted')"),
            count("memberships", "kind = 'ev' AND type = 'm.room.member'"),
            *(count("state_changes", "kind != 'ev'"), LAST_AT),
        ),
        order=("hour", "room_id"),
    ),
    TableDeclaration(
        "invalidations",
        "Invalidations of each day by cache (the name as sent) and key. A key of null is the whole cache.",
        "caches",
        (
            *(key("day", "CAST(committed_at AS date)"), key("cache", "cache_func")),
            *(TableColumn("keys", "keys", "optional key"), count("invalidations"), FIRST_AT, LAST_AT),
        ),
        order=("day", "cache", "keys"),
    ),
)

TABLES: Final = {table.name: table for table in DECLARATIONS}
"""The tables, by name."""
