"""The aliases and implications of each release of Synapse, made from `synrepl.caches.rules`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from synrepl.caches.entries import WireKey
from synrepl.caches.rules import Rule
from synrepl.streams.catalog import (
    AccountData,
    Backfilled,
    DeviceList,
    Event,
    Presence,
    PushRules,
    Receipt,
    State,
    StateAll,
    StickyEvent,
    TagAccountData,
    ThreadSubscription,
    UnPartialStatedEvent,
)

Drop = tuple[str, WireKey | list[WireKey]]
"""A cache, and a key or a list of keys to drop; None: all entries."""

_LISTED: Final = ("m.room.create", "m.room.encryption", "m.room.name", "m.room.tombstone")

_WHEN: Final[dict[str, Callable[[Any], object]]] = {
    "redacts": lambda row: row.redacts,
    "relates_to": lambda row: row.relates_to,
    "member": lambda row: row.type == "m.room.member" and row.state_key is not None,
    "create": lambda row: row.type == "m.room.create",
    "encryption": lambda row: row.type == "m.room.encryption",
    "listed": lambda row: row.state_key == "" and row.type in _LISTED,
    "no_room": lambda row: not row.room_id,
    "tag": lambda row: row.data_type == "m.tag",
    "tag_in_room": lambda row: row.data_type == "m.tag" and row.room_id,
    "tag_elsewhere": lambda row: row.data_type == "m.tag" and not row.room_id,
    "of_user": lambda row: row.user_id.startswith("@"),
    "not_calculated": lambda row: not row.hosts_calculated,
    "rejection": lambda row: row.rejection_status_changed,
}


# -- aliases --------------------------------------------------------------------------------------------


def aliases(rules: Sequence[Rule]) -> Iterator[tuple[str, Callable[..., Iterable[Drop]]]]:
    """Functions of keys, by alias."""
    for name, make in (("cs_cache_fake", _state), ("ph_cache_fake", _room), ("dr_cache_fake", _room)):
        if of_alias := [rule for rule in rules if rule.source == name]:
            yield name, make(of_alias)


def _room(rules: Sequence[Rule]) -> Callable[[str], Iterable[Drop]]:
    drops = list(dict.fromkeys((rule.cache, rule.key == "*") for rule in rules))

    def of_room(room_id: str) -> Iterable[Drop]:
        """A room was purged or deleted."""
        return [(name, None if is_whole else (room_id,)) for name, is_whole in drops]

    return of_room


def _state(rules: Sequence[Rule]) -> Callable[..., Iterable[Drop]]:
    with_users = list(dict.fromkeys((rule.cache, rule.key) for rule in rules))
    without = [(rule.cache, rule.key == "*") for rule in rules if rule.key in ("room", "*") and not rule.when]

    def current_state(room_id: str, *changed: str) -> Iterable[Drop]:
        """What to drop when the state of a room changed, and with it the membership of `changed`."""
        if not changed:
            return [(name, None if is_whole else (room_id,)) for name, is_whole in without]
        users = dict.fromkeys(changed)
        servers = sorted({user.partition(":")[2] for user in users})
        keys: dict[str, WireKey | list[WireKey]] = {
            "*": None,
            "room": (room_id,),
            "user": [(user,) for user in users],
            "room+user": [(room_id, user) for user in users],
            "room+host": [(room_id, server) for server in servers],
        }
        return [(name, keys[key]) for name, key in with_users]

    return current_state


# -- rows -----------------------------------------------------------------------------------------------

_Drops = list[tuple[str, Callable[[Any], tuple[str, ...]] | None]]
_Groups = list[tuple[Callable[[Any], object] | None, _Drops]]


def implications(rules: Sequence[Rule]) -> Iterator[tuple[str, list[Any], Callable[[Any], Iterable[Drop]]]]:
    """Functions of rows, by stream, with sample rows for which they yield all that they can."""
    for stream, samples in SAMPLES.items():
        if of_stream := [rule for rule in rules if rule.source == stream]:
            yield stream, samples, _implied(of_stream)


def _implied(rules: Sequence[Rule]) -> Callable[[Any], Iterable[Drop]]:
    by_class: dict[str, _Groups] = {
        row: _groups([rule for rule in rules if rule.row == row]) for row in {rule.row for rule in rules}
    }
    of_any_class = by_class.get("", [])

    def implied(row: Any) -> Iterator[Drop]:
        groups = by_class.get(type(row).__name__, of_any_class)
        for is_met, drops in groups:
            if is_met is None or is_met(row):
                for name, key in drops:
                    yield name, None if key is None else key(row)

    return implied


def _groups(rules: Sequence[Rule]) -> _Groups:
    return [
        (_WHEN[when] if when else None, [(name, _key(key)) for name, key in dict.fromkeys(pairs)])
        for when, pairs in (
            (when, [(rule.cache, rule.key) for rule in together])
            for when, together in groupby(rules, key=attrgetter("when"))
        )
    ]


@cache
def _key(words: str) -> Callable[[Any], tuple[str, ...]] | None:
    if words == "*":
        return None
    fields = words.split("+")
    get: Callable[[Any], Any] = attrgetter(*fields)
    if len(fields) == 1:
        return lambda row: (get(row),)
    return lambda row: tuple(get(row))


_USER: Final = "@user:one"
_ROOM: Final = "!room:one"
_ENTRIES = [("m.room.member", _USER), *((kind, "") for kind in _LISTED)]


def _backfilled(kind: str, state_key: str) -> Backfilled:
    return Backfilled(
        event_id="$event",
        room_id=_ROOM,
        type=kind,
        state_key=state_key,
        redacts="$redacted",
        relates_to="$related",
    )


def _event(kind: str, state_key: str) -> Event:
    return Event(
        event_id="$event",
        room_id=_ROOM,
        type=kind,
        state_key=state_key,
        redacts="$redacted",
        relates_to="$related",
        membership=None,
        rejected=False,
        outlier=False,
    )


_STATES = [State(room_id=_ROOM, type=kind, state_key=key, event_id=None) for kind, key in _ENTRIES]

SAMPLES: Final[dict[str, list[Any]]] = {
    "events": [*(_event(*entry) for entry in _ENTRIES), *_STATES, StateAll(room_id=_ROOM)],
    "backfill": [_backfilled(*entry) for entry in _ENTRIES],
    "tag_account_data": [TagAccountData(user_id=_USER, room_id=_ROOM, data="{}")],
    "account_data": [
        AccountData(user_id=_USER, room_id=room, data_type=kind)
        for room in (_ROOM, None)
        for kind in ("m.tag", "m.direct")
    ],
    "presence": [
        Presence(
            user_id=_USER,
            state="online",
            last_active_ts=0,
            last_federation_update_ts=0,
            last_user_sync_ts=0,
            status_msg=None,
            currently_active=True,
        )
    ],
    "push_rules": [PushRules(user_id=_USER)],
    "receipts": [
        Receipt(
            room_id=_ROOM, receipt_type="m.read", user_id=_USER, event_id="$event", thread_id=None, data={}
        )
    ],
    "device_lists": [DeviceList(user_id=_USER, is_signature=False, hosts_calculated=False)],
    "un_partial_stated_event": [UnPartialStatedEvent(event_id="$event", rejection_status_changed=True)],
    "thread_subscriptions": [ThreadSubscription(user_id=_USER, room_id=_ROOM, event_id="$event")],
    "sticky_events": [StickyEvent(room_id=_ROOM, event_id="$event")],
}
"""Rows for which each stream drops all that it can."""
