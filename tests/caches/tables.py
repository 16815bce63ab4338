"""Tables of the entries that rows drop, written a second time from the source of each release."""

import json
from collections.abc import Iterator
from typing import Any

# -- the caches, and what their keys are made of --------------------------------------------------------

KEYS = {
    "is_host_joined": "room server",
    "is_host_invited": "room server",
    "was_host_joined": "room server",
    "get_users_in_room": "room",
    "get_current_hosts_in_room": "room",
    "get_users_in_room_with_profiles": "room",
    "get_number_joined_users_in_room": "room",
    "get_member_counts": "room",
    "get_local_users_in_room": "room",
    "does_pair_of_users_share_a_room": "user user",
    "get_user_in_room_with_profile": "room user",
    "get_rooms_for_user": "user",
    "_get_rooms_for_local_user_where_membership_is_inner": "user",
    "get_sliding_sync_rooms_for_user_from_membership_snapshots": "user",
    "get_room_summary": "room",
    "get_current_state_ids": "room",
    "get_partial_current_state_ids": "room",
    "_get_current_state_event_id": "room",
    "get_room_type": "room",
    "get_room_encryption": "room",
    "get_event": "event",
    "have_seen_event": "room event",
    "get_latest_event_ids_in_room": "room",
    "get_unread_event_push_actions_by_room_for_user": "room user",
    "get_relations_for_event": "room event",
    "_get_max_event_pos": "room",
    "get_threads": "room user",
    "get_metadata_for_event": "room event",
    "_get_membership_from_event_id": "event",
    "get_applicable_edit": "event",
    "get_thread_id": "event",
    "get_thread_id_for_receipts": "event",
    "get_invited_rooms_for_local_user": "user",
    "did_forget": "user room",
    "get_forgotten_rooms_for_user": "user",
    "get_references_for_event": "event",
    "get_thread_summary": "event",
    "get_thread_participated": "event user",
    "_get_state_group_for_event": "event",
    "get_event_ordering": "event",
    "is_partial_state_event": "event",
    "_get_joined_profile_from_event_id": "event",
    "get_aliases_for_room": "room",
    "_get_linearized_receipts_for_room": "room",
    "is_room_blocked": "room",
    "get_retention_policy_for_room": "room",
    "_get_partial_state_servers_at_join": "room",
    "is_partial_state_room": "room",
    "get_current_hosts_in_room_ordered": "room",
    "get_room_version_id": "room",
    "get_account_data_for_room": "user room",
    "get_account_data_for_room_and_type": "user room",
    "get_tags_for_room": "user room",
    "_get_forward_extremeties_for_room": "room",
    "_get_e2e_cross_signing_signatures_for_device": "user word",
    "_get_server_keys_json": "server word",
    "get_user_by_id": "user",
    "get_device": "user word",
    "get_monthly_active_count": "",
    "get_monthly_active_count_by_service": "",
    "user_last_seen_monthly_active": "user",
    "count_e2e_one_time_keys": "user word",
    "_get_bare_e2e_cross_signing_keys": "user",
    "get_ratelimit_for_user": "user",
    "get_e2e_unused_fallback_key_types": "user word",
    "get_user_locked_status": "user",
    "get_something": "word",
    "ignored_by": "user",
    "get_profile": "user",
}

# Caches of which a shorter key means all that begin with it.
TREES = {
    "have_seen_event", "get_relations_for_event", "get_metadata_for_event", "get_threads",
    "get_unread_event_push_actions_by_room_for_user", "get_thread_participated",
    "count_e2e_one_time_keys", "get_e2e_unused_fallback_key_types",
    "get_account_data_for_room", "get_account_data_for_room_and_type",
}  # fmt: skip

# -- the tables: what is dropped of which caches ---------------------------------------------------------

SLIDING_SYNC = "get_sliding_sync_rooms_for_user_from_membership_snapshots"
LISTED = ("m.room.create", "m.room.encryption", "m.room.name", "m.room.tombstone")
LOCAL_ROOMS = "_get_rooms_for_local_user_where_membership_is_inner"

MEMBERS = (
    "get_users_in_room get_current_hosts_in_room get_users_in_room_with_profiles"
    " get_number_joined_users_in_room get_member_counts get_local_users_in_room"
)
PURGED_ROOM = (
    "have_seen_event get_latest_event_ids_in_room get_unread_event_push_actions_by_room_for_user"
    " get_relations_for_event _get_max_event_pos get_threads get_room_type get_room_encryption"
    " get_metadata_for_event"
)
PURGED_ALL = (
    "get_event _get_membership_from_event_id get_applicable_edit get_thread_id get_thread_id_for_receipts"
    f" get_invited_rooms_for_local_user get_rooms_for_user {LOCAL_ROOMS} {SLIDING_SYNC} did_forget"
    " get_forgotten_rooms_for_user get_references_for_event get_thread_summary get_thread_participated"
    " _get_state_group_for_event get_event_ordering is_partial_state_event _get_joined_profile_from_event_id"
)
DELETED_ROOM = (
    "get_aliases_for_room _get_linearized_receipts_for_room is_room_blocked get_retention_policy_for_room"
    " _get_partial_state_servers_at_join is_partial_state_room get_current_hosts_in_room_ordered"
    " get_room_version_id get_partial_current_state_ids _get_current_state_event_id get_users_in_room"
    " get_current_hosts_in_room get_users_in_room_with_profiles get_number_joined_users_in_room"
    " get_member_counts get_local_users_in_room get_room_summary"
)
DELETED_ALL = (
    "get_account_data_for_room get_account_data_for_room_and_type get_tags_for_room"
    " _get_forward_extremeties_for_room is_host_invited is_host_joined does_pair_of_users_share_a_room"
    f" get_user_in_room_with_profile get_rooms_for_user {LOCAL_ROOMS}"
)

Drops = Iterator[tuple[str, tuple[str, ...] | None]]


def _of(names: str, *key: str) -> Drops:
    for name in names.split():
        yield name, key


def _all(names: str) -> Drops:
    for name in names.split():
        yield name, None


def newest(name: str, keys: list[str] | None) -> Drops:
    """What a row of ``caches`` drops in 1.163."""
    if name == "cs_cache_fake":
        assert keys is not None
        room, *users = keys
        for user in users:
            yield from _of("is_host_joined is_host_invited", room, user.split(":", 1)[1])
            yield from _of("get_user_in_room_with_profile", room, user)
            yield from _of(f"get_rooms_for_user {LOCAL_ROOMS} {SLIDING_SYNC}", user)
        if users:
            yield from _of(MEMBERS, room)
            yield from _all("does_pair_of_users_share_a_room")
        yield from _of(
            "get_room_summary get_partial_current_state_ids _get_current_state_event_id get_room_type"
            " get_room_encryption",
            room,
        )
        yield from _all(SLIDING_SYNC)
    elif name in ("ph_cache_fake", "dr_cache_fake"):
        assert keys is not None
        yield from _of(PURGED_ROOM, keys[0])
        yield from _all(PURGED_ALL)
        if name == "dr_cache_fake":
            yield from _of(DELETED_ROOM, keys[0])
            yield from _all(DELETED_ALL)
    elif name in ("_get_e2e_cross_signing_signatures_for_device", "_get_server_keys_json"):
        for text in keys or ():
            yield name, tuple(json.loads(text))
    else:
        yield name, None if keys is None else tuple(keys)


def legacy(name: str, keys: list[str] | None) -> Drops:
    """What a row of ``caches`` drops in 1.0."""
    if name == "cs_cache_fake":
        assert keys is not None
        for user in keys[1:]:
            yield from _of("is_host_joined was_host_joined", keys[0], user.split(":", 1)[1])
        yield from _of("get_users_in_room get_room_summary get_current_state_ids", keys[0])
    else:
        yield name, None if keys is None else tuple(keys)


def legacy_implied(stream: str, row: list[Any]) -> Drops:
    """What a row of ``events`` or ``backfill`` drops in 1.0."""
    kind, values = ("ev", row) if stream == "backfill" else row
    if kind == "ev":
        event, room, _, _, redacts, relates_to = values[:6]
        yield from _of("get_event", event)
        yield from _of("get_latest_event_ids_in_room get_unread_event_push_actions_by_room_for_user", room)
        if redacts:
            yield from _of("get_event", redacts)
        if relates_to:
            yield from _of("get_relations_for_event get_applicable_edit", relates_to)


def implied(stream: str, row: list[Any]) -> Drops:
    """What a row of ``events`` or ``backfill`` drops in 1.163."""
    kind, values = ("ev", row) if stream == "backfill" else row
    if kind == "state-all":
        yield from _all(f"get_rooms_for_user {SLIDING_SYNC}")
        yield from _of("get_room_type get_room_encryption", values[0])
    elif kind == "state":
        room, state_type, state_key, _ = values
        if state_type == "m.room.member":
            yield from _of("get_rooms_for_user", state_key)
            yield from _all(SLIDING_SYNC)
        elif state_type == "m.room.create":
            yield from _of("get_room_type", room)
        elif state_type == "m.room.encryption":
            yield from _of("get_room_encryption", room)
        if state_key == "" and state_type in LISTED:
            yield from _all(SLIDING_SYNC)
    else:
        event, room, event_type, state_key, redacts, relates_to = values[:6]
        yield from _of("get_event _get_membership_from_event_id", event)
        yield from _of("have_seen_event get_metadata_for_event", room, event)
        yield from _of(
            "get_latest_event_ids_in_room get_unread_event_push_actions_by_room_for_user _get_max_event_pos",
            room,
        )
        if redacts:
            yield from _of("get_event get_applicable_edit get_thread_id get_thread_id_for_receipts", redacts)
            yield from _of("get_relations_for_event", room, redacts)
        if event_type == "m.room.member" and state_key is not None:
            yield from _of(
                f"get_invited_rooms_for_local_user get_rooms_for_user {LOCAL_ROOMS} {SLIDING_SYNC}"
                " get_forgotten_rooms_for_user",
                state_key,
            )
            yield from _of("did_forget", state_key, room)
        if event_type == "m.room.create":
            yield from _of("get_room_type", room)
        if event_type == "m.room.encryption":
            yield from _of("get_room_encryption", room)
        if state_key == "" and event_type in LISTED:
            yield from _all(SLIDING_SYNC)
        if relates_to:
            yield from _of("get_relations_for_event", room, relates_to)
            yield from _of(
                "get_references_for_event get_applicable_edit get_thread_summary get_thread_participated",
                relates_to,
            )
            yield from _of("get_threads", room)
