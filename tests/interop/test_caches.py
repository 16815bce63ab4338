"""A worker of a real release and `Caches()`, given the same rows: they drop the same entries."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from synrepl.caches.vintages import SAMPLES
from synrepl.ports.caches import Caches
from synrepl.streams.catalog import Backfilled, DeviceList, Event, State
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import CURRENT, LEGACY, NEWEST, Dialect
from tests.interop.harness import PEERS, Program, peer_python

DIALECTS = {"legacy": LEGACY, "current": CURRENT, "newest": NEWEST}
TABLE = StreamTable.default()
ROOM, USERS = "!r:hs", ["@a:hs", "@b:far:8448", "@c:far:8448", "@a:hs"]

Entry = tuple[str, tuple[Any, ...] | None]


def rows_of_caches(dialect: Dialect, names: dict[str, int]) -> Iterator[list[Any]]:
    """Each alias with each number of keys, and each cache with one key and with null keys."""
    for count in (0, 1, 4):
        yield ["cs_cache_fake", [ROOM, *USERS[:count]], 1]
    if dialect.release >= (1, 86, 0):
        yield ["ph_cache_fake", [ROOM], 1]
        yield ["dr_cache_fake", [ROOM], 1]
    packed = {"_get_e2e_cross_signing_signatures_for_device", "_get_server_keys_json"} & set(names)
    for name in packed:
        yield [name, ['["@a:hs", "D"]', '["@b:hs", "E"]'], 1]
    for name, arguments in names.items():
        if name not in packed:
            yield [name, [f"k{number}" for number in range(arguments)], 1]
            yield [name, None, 1]


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


def theirs(peer: Program, stream: str, row: Any) -> set[Entry] | None:
    """What the release drops; None if it refuses the row."""
    mark = peer.mark()
    peer.say(json.dumps([stream, row]))
    drops = peer.expect("answered", after=mark)["drops"]
    if drops is None:
        return None
    return {(name, None if key is None else tuple(key)) for name, key in drops}


@pytest.mark.parametrize("peer_release", DIALECTS)
def test_the_same_entries_are_dropped(peer_release: str) -> None:
    """For every kind of invalidation that the release sends."""
    if not peer_python(peer_release).exists():
        pytest.skip(f"no Synapse of release {peer_release!r}; run scripts/interop {peer_release}")
    dialect, caches, ours = DIALECTS[peer_release], Caches(), set[Entry]()
    caches.on_invalidation.append(lambda found: ours.add((found.cache, found.key)))
    caches.connected(dialect)
    compared: dict[str, int] = {}
    refused = []
    with Program([peer_python(peer_release), PEERS / "cache_drops.py"]) as peer:
        names = peer.expect("ready", seconds=60)["names"]
        rows = [("caches", row) for row in rows_of_caches(dialect, names)]
        for stream, row in other_rows(dialect):
            text = TABLE[stream].project(TABLE[stream].encode(row), dialect)
            if text is not None:
                rows.append((stream, json.loads(text)))
        for stream, row in rows:
            ours.clear()
            caches.apply(stream, [TABLE[stream].decode(json.dumps(row).encode(), dialect)])
            expected = theirs(peer, stream, row)
            if expected is None:
                refused.append((stream, row))
                continue
            known = {*names, "get_event"}
            assert expected == {entry for entry in ours if entry[0] in known}, (stream, row)
            compared[stream] = compared.get(stream, 0) + 1

    # 1.0 knows no null keys; nothing else is refused.
    assert [] == [(stream, row) for stream, row in refused if peer_release != "legacy" or row[1] is not None]
    assert {"caches", "events", "backfill", "receipts", "presence", "account_data"} <= set(compared)
    assert compared["caches"] > len(names)
