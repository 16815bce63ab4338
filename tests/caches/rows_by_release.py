"""Rows that each release sends and that drop entries of caches, of every kind, and some that drop none."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from synrepl.caches.vintages import SAMPLES
from synrepl.streams.catalog import Backfilled, DeviceList, Event, State
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import Dialect

TABLE = StreamTable.default()
ROOM, USERS = "!r:hs", ["@a:hs", "@b:far:8448", "@c:far:8448", "@a:hs"]


def rows_sent(dialect: Dialect) -> Iterator[tuple[str, Any]]:
    """Streams and rows, as the release sends them."""
    yield from (("caches", row) for row in rows_of_aliases(dialect))
    for stream, row in other_rows(dialect):
        text = TABLE[stream].project(TABLE[stream].encode(row), dialect)
        if text is not None:
            yield stream, json.loads(text)


def rows_of_aliases(dialect: Dialect) -> Iterator[list[Any]]:
    """Each alias with each number of keys that the release sends."""
    for count in (0, 1, 4):
        yield ["cs_cache_fake", [ROOM, *USERS[:count]], 1]
    if dialect.release >= (1, 86, 0):
        yield ["ph_cache_fake", [ROOM], 1]
        yield ["dr_cache_fake", [ROOM], 1]
    for name, since in (
        ("_get_e2e_cross_signing_signatures_for_device", (1, 139, 0)),
        ("_get_server_keys_json", (1, 158, 0)),
    ):
        if dialect.release >= since:
            yield [name, ['["@a:hs", "D"]', '["@b:hs", "E"]'], 1]


def other_rows(dialect: Dialect) -> Iterator[tuple[str, Any]]:
    """Rows of other streams for which a release drops something, and some for which none does."""
    for stream, samples in SAMPLES.items():
        if dialect.release in TABLE[stream].span:
            yield from ((stream, row) for row in samples)
    for kind, key, redacts, relates_to in itertools.product(
        ("m.room.message", "m.room.member", "m.room.create", "m.room.name"),
        (None, "", "@a:hs"),
        (None, "$r"),
        (None, "$x"),
    ):
        if kind == "m.room.member" and key is None:
            continue  # No membership is without its user.
        values: dict[str, Any] = {
            "event_id": "$e", "room_id": ROOM, "type": kind, "state_key": key, "redacts": redacts,
            "relates_to": relates_to,
        }  # fmt: skip
        yield "backfill", Backfilled(**values)
        yield "events", Event(**values, membership=None, rejected=False, outlier=False)
        yield "events", State(room_id=ROOM, type=kind, state_key=key or "", event_id=None)
    yield "device_lists", DeviceList(user_id="far", is_signature=False, hosts_calculated=False)
    yield "device_lists", DeviceList(user_id="@a:hs", is_signature=False, hosts_calculated=True)
