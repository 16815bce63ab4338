"""The vintages of Synapse releases.

`NEWEST` is that of 1.163: aliases for room state, purged history, deleted rooms and packed keys; implications
of events. `LEGACY` is that of 1.0: only the alias for room state.
"""

from collections.abc import Iterable, Iterator
from itertools import repeat

from synrepl.caches.entries import WireKey
from synrepl.caches.vintage import PACKED, Drop, Unreadable, Vintage, pack, unpack
from synrepl.streams.catalog import Backfilled, Event, State, StateAll

NEWEST = Vintage("NEWEST")

_SLIDING_SYNC = "get_sliding_sync_rooms_for_user_from_membership_snapshots"
_LOCAL_ROOMS = "_get_rooms_for_local_user_where_membership_is_inner"


def _each(caches: Iterable[str], keys: WireKey | list[WireKey]) -> Iterator[Drop]:
    return zip(caches, repeat(keys))


_MEMBERS_OF_ROOM = (
    "get_users_in_room",
    "get_current_hosts_in_room",
    "get_users_in_room_with_profiles",
    "get_number_joined_users_in_room",
    "get_member_counts",
    "get_local_users_in_room",
)
_STATE_OF_ROOM = (
    "get_room_summary",
    "get_partial_current_state_ids",
    "_get_current_state_event_id",
    "get_room_type",
    "get_room_encryption",
)


@NEWEST.alias("cs_cache_fake")
def current_state(room_id: str, *changed: str) -> Iterator[Drop]:
    """The state of a room changed, including the membership of `changed`."""
    users = dict.fromkeys(changed)
    if users:
        servers = sorted({user.partition(":")[2] for user in users})
        yield from _each(("is_host_joined", "is_host_invited"), [(room_id, server) for server in servers])
        yield from _each(_MEMBERS_OF_ROOM, (room_id,))
        yield "does_pair_of_users_share_a_room", None
        yield "get_user_in_room_with_profile", [(room_id, user) for user in users]
        yield from _each(("get_rooms_for_user", _LOCAL_ROOMS, _SLIDING_SYNC), [(user,) for user in users])
    yield from _each(_STATE_OF_ROOM, (room_id,))
    yield _SLIDING_SYNC, None


_HISTORY_OF_ROOM = (
    "have_seen_event",
    "get_latest_event_ids_in_room",
    "get_unread_event_push_actions_by_room_for_user",
    "get_relations_for_event",
    "_get_max_event_pos",
    "get_threads",
    "get_room_type",
    "get_room_encryption",
    "get_metadata_for_event",
)
_HISTORY = (
    "_get_membership_from_event_id",
    "get_applicable_edit",
    "get_thread_id",
    "get_thread_id_for_receipts",
    "get_invited_rooms_for_local_user",
    "get_rooms_for_user",
    _LOCAL_ROOMS,
    _SLIDING_SYNC,
    "did_forget",
    "get_forgotten_rooms_for_user",
    "get_references_for_event",
    "get_thread_summary",
    "get_thread_participated",
    "_get_state_group_for_event",
    "get_event_ordering",
    "is_partial_state_event",
    "_get_joined_profile_from_event_id",
)


@NEWEST.alias("ph_cache_fake")
def purged_history(room_id: str) -> Iterator[Drop]:
    """Events of a room were purged."""
    # Event objects are cached by event alone, so it is unknown which of them belong to this room.
    yield "get_event", None
    yield from _each(_HISTORY_OF_ROOM, (room_id,))
    yield from _each(_HISTORY, None)


_SETTINGS_OF_ROOM = (
    "get_aliases_for_room",
    "_get_linearized_receipts_for_room",
    "is_room_blocked",
    "get_retention_policy_for_room",
    "_get_partial_state_servers_at_join",
    "is_partial_state_room",
    "get_current_hosts_in_room_ordered",
    "get_room_version_id",
)
_SETTINGS = (
    "get_account_data_for_room",
    "get_account_data_for_room_and_type",
    "get_tags_for_room",
    "_get_forward_extremeties_for_room",  # so spelled on the wire
)
_MEMBERS = (
    "is_host_invited",
    "is_host_joined",
    "does_pair_of_users_share_a_room",
    "get_user_in_room_with_profile",
    "get_rooms_for_user",
    _LOCAL_ROOMS,
)


@NEWEST.alias("dr_cache_fake")
def deleted_room(room_id: str) -> Iterator[Drop]:
    """A room was deleted, with its history, its settings and its members."""
    yield from purged_history(room_id)
    yield from _each(_SETTINGS_OF_ROOM, (room_id,))
    yield from _each(_SETTINGS, None)
    yield from _each(("get_partial_current_state_ids", "_get_current_state_event_id"), (room_id,))
    yield from _each(_MEMBERS_OF_ROOM, (room_id,))
    yield "get_room_summary", (room_id,)
    yield from _each(_MEMBERS, None)


def _packed(name: str) -> None:
    @NEWEST.alias(name, samples=[[pack(("@user:one", "DEVICE"))]])
    def keys_of(*texts: str) -> Iterator[Drop | Unreadable]:
        for text in texts:
            try:
                yield name, unpack(text)
            except ValueError:
                yield Unreadable(text)


for _name in PACKED:
    _packed(_name)


_ROOMS_OF_USER = (
    "get_invited_rooms_for_local_user",
    "get_rooms_for_user",
    _LOCAL_ROOMS,
    _SLIDING_SYNC,
    "get_forgotten_rooms_for_user",
)
_SHOWN_IN_LISTS = ("m.room.create", "m.room.encryption", "m.room.name", "m.room.tombstone")
_RELATED = (
    "get_references_for_event",
    "get_applicable_edit",
    "get_thread_summary",
    "get_thread_participated",
)


def event(row: Event | Backfilled) -> Iterator[Drop]:
    """An event was added; it may redact or relate to others."""
    room, event_id, user = row.room_id, row.event_id, row.state_key
    yield "get_event", (event_id,)
    yield "have_seen_event", (room, event_id)
    yield "get_metadata_for_event", (room, event_id)
    yield "get_latest_event_ids_in_room", (room,)
    yield "get_unread_event_push_actions_by_room_for_user", (room,)
    yield "_get_max_event_pos", (room,)
    yield "_get_membership_from_event_id", (event_id,)
    if row.redacts:
        yield "get_event", (row.redacts,)
        yield "get_relations_for_event", (room, row.redacts)
        yield from _each(
            ("get_applicable_edit", "get_thread_id", "get_thread_id_for_receipts"), (row.redacts,)
        )
    if row.type == "m.room.member" and user is not None:
        yield from _each(_ROOMS_OF_USER, (user,))
        yield "did_forget", (user, room)
    elif row.type == "m.room.create":
        yield "get_room_type", (room,)
    elif row.type == "m.room.encryption":
        yield "get_room_encryption", (room,)
    if user == "" and row.type in _SHOWN_IN_LISTS:
        yield _SLIDING_SYNC, None
    if row.relates_to:
        yield "get_relations_for_event", (room, row.relates_to)
        yield from _each(_RELATED, (row.relates_to,))
        yield "get_threads", (room,)


def _sample(kind: str, state_key: str) -> Backfilled:
    return Backfilled(
        event_id="$event",
        room_id="!room:one",
        type=kind,
        state_key=state_key,
        redacts="$redacted",
        relates_to="$related",
    )


_EVENTS = [_sample("m.room.member", "@user:one"), *(_sample(kind, "") for kind in _SHOWN_IN_LISTS)]
_STATES = [
    State(room_id="!room:one", type=kind, state_key="@user:one", event_id=None)
    for kind in ("m.room.member", *_SHOWN_IN_LISTS)
]

NEWEST.implied("backfill", samples=_EVENTS)(event)


@NEWEST.implied("events", samples=[*_EVENTS, *_STATES, StateAll(room_id="!room:one")])
def events(row: Event | Backfilled | State | StateAll) -> Iterator[Drop]:
    """An event was persisted, or the current state of a room changed."""
    match row:
        case State(room_id=room, type="m.room.member", state_key=user):
            yield "get_rooms_for_user", (user,)
            yield _SLIDING_SYNC, None
        case State(room_id=room, type="m.room.encryption"):
            yield "get_room_encryption", (room,)
        case State(room_id=room, type="m.room.create"):
            yield "get_room_type", (room,)
        case State():
            pass
        case StateAll(room_id=room):
            yield "get_rooms_for_user", None
            yield _SLIDING_SYNC, None
            yield "get_room_type", (room,)
            yield "get_room_encryption", (room,)
        case _:
            yield from event(row)


NEWEST.seal()


LEGACY = Vintage("LEGACY")


@LEGACY.alias("cs_cache_fake")
def legacy_current_state(room_id: str, *changed: str) -> Iterator[Drop]:
    """The state of a room changed, including the membership of `changed`."""
    for server in sorted({user.partition(":")[2] for user in changed}):
        yield "is_host_joined", (room_id, server)
        yield "was_host_joined", (room_id, server)
    yield from _each(("get_users_in_room", "get_room_summary", "get_current_state_ids"), (room_id,))


LEGACY.seal()
