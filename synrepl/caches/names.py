"""The caches that Synapse invalidates by name, by release, with the arguments of their keys.

Read from three releases: 1.66.0, 1.157.1 and 1.163.2. A release between two of them has the names that
either of them has, as far as is known; an older or newer one those of the nearest. Aliases and their meaning
are in `synrepl.caches.rules`.
"""

import re
from typing import Final

import msgspec

from synrepl.caches.vintage import PACKED, Invalidation, Vintage, pack
from synrepl.errors import ConfigError, suggest
from synrepl.wire import dialect

Release = tuple[int, int]
"""A release without its patch number: all patches have the same caches."""

_NEWEST: Final = Vintage.of(dialect.NEWEST)

KNOWN: Final[tuple[Release, ...]] = ((1, 66), (1, 157), (1, 163))

_LINES: Final = {
    ((1, 66), (1, 163)): """
_get_bare_e2e_cross_signing_keys user_id
_get_cached_user_device* user_id device_id
_get_forward_extremeties_for_room room_id (stream_ordering)
_get_full_presence_stream_token_for_user user_id
_get_joined_hosts_cache room_id
_get_linearized_receipts_for_room* room_id (to_key) (from_key)
_get_membership_from_event_id member_event_id
_get_presence_for_user user_id
_get_receipts_for_user_with_orderings user_id receipt_type
_get_state_group_for_event event_id
did_forget user_id room_id
get_account_data_for_room* user_id room_id
get_account_data_for_room_and_type* user_id room_id account_data_type
get_aliases_for_room room_id
get_app_service_users_in_room room_id (app_service)
get_applicable_edit event_id
get_cached_devices_for_user user_id
get_current_hosts_in_room room_id
get_destination_retry_timings destination
get_device_list_last_stream_id_for_remote user_id
get_earliest_token_for_stats stats_type id
get_event_reference_hash event_id
get_expiration_ts_for_user user_id
get_forgotten_rooms_for_user user_id
get_global_account_data_by_type_for_user* user_id data_type
get_id_for_instance instance_name
get_if_user_has_pusher user_id
get_invited_rooms_for_local_user user_id
get_latest_event_ids_in_room room_id
get_linearized_receipts_for_all_rooms (to_key) (from_key)
get_local_users_in_room room_id
get_monthly_active_count
get_monthly_active_count_by_service
get_mutual_rooms_between_users (user_ids)
get_name_from_instance_id (instance_id)
get_number_joined_users_in_room room_id
get_partial_current_state_ids room_id
get_push_rules_for_user user_id
get_ratelimit_for_user user_id
get_retention_policy_for_room room_id
get_room_summary room_id
get_room_version_id room_id
get_tags_for_user user_id
get_thread_participated event_id user_id
get_thread_summary event_id
get_unread_event_push_actions_by_room_for_user* room_id user_id
get_user_by_access_token token
get_user_by_id user_id
get_user_deactivated_status user_id
get_user_in_room_with_profile room_id user_id
get_users_in_room room_id
get_users_in_room_with_profiles room_id
have_seen_event* room_id event_id
ignored_by user_id
ignored_users user_id
is_guest user_id
is_host_invited room_id host
is_host_joined room_id host
is_partial_state_event event_id
is_real_user user_id
is_room_blocked room_id
is_support_user user_id
is_user_erased user_id
mark_access_token_as_used (token_id)
user_last_seen_monthly_active user_id
""",
    ((1, 66), (1, 157)): """
does_pair_of_users_share_a_room user_id other_user_id
""",
    ((1, 66), (1, 66)): """
_get_joined_hosts room_id (state_group)
_get_joined_profile_from_event_id event_id
_get_joined_users_from_context room_id (state_group)
_get_min_device_lists_changes_in_room
_get_server_verify_key (server_name_and_key_id)
count_e2e_one_time_keys user_id device_id
get_account_data_for_user user_id
get_aggregation_groups_for_event* event_id room_id (limit)
get_e2e_unused_fallback_key_types user_id device_id
get_event_ordering event_id
get_mutual_event_relations_for_rel_type event_id relation_type
get_push_rules_enabled_for_user user_id
get_relations_for_event* event_id (event)
get_rooms_for_user_with_stream_ordering user_id
get_user_filter user_localpart (filter_id)
get_user_in_directory user_id
""",
    ((1, 157), (1, 163)): """
_get_e2e_cross_signing_signatures_for_device user_id device_id
_get_e2e_device_keys_for_federation_query_inner user_id
_get_max_event_pos room_id
_get_partial_state_servers_at_join room_id
_get_rooms_for_local_user_where_membership_is_inner* user_id (membership_list)
_get_server_keys_json server_name key_id
_get_user_id_from_membership_event_id event_id
count_e2e_one_time_keys* user_id device_id
does_pair_of_users_share_a_room_joined_or_invited user_id other_user_id
get_and_clear_connection_positions user_id device_id conn_id (connection_position)
get_current_hosts_in_room_ordered room_id
get_device* user_id device_id
get_e2e_unused_fallback_key_types* user_id device_id
get_event_ordering event_id room_id
get_global_account_data_for_user user_id
get_member_counts room_id
get_metadata_for_event* room_id event_id
get_partial_rooms
get_references_for_event event_id
get_relations_for_event* room_id event_id (event)
get_room_account_data_for_user user_id
get_room_encryption room_id
get_room_type room_id
get_rooms_for_user user_id
get_server_key_json_for_remote server_name key_id
get_sliding_sync_rooms_for_user_from_membership_snapshots user_id
get_subscribers_to_thread room_id thread_root_event_id
get_subscription_for_thread* user_id room_id thread_root_event_id
get_tags_for_room* user_id room_id
get_thread_id event_id
get_thread_id_for_receipts event_id
get_threads* room_id (limit) (from_token)
get_user_by_external_id auth_provider external_id
get_user_filter (user_id) (filter_id)
get_user_locked_status user_id
get_user_suspended_status user_id
is_feature_enabled user_id (feature)
is_partial_state_room room_id
is_server_admin user
is_user_approved user_id
list_enabled_features user_id
""",
    ((1, 163), (1, 163)): """
_get_current_state_event_id* room_id (event_type_and_state_key)
does_pair_of_users_share_a_room user_id other_user_id (exclude_room_ids)
""",
}
"""The caches that all known releases from the first to the last have.

A line is a name and the arguments of its key. With a star, a part of the key from its beginning drops all
entries that begin so. An argument in brackets is no text: no row can name it, so that it ends what can be
given.
"""

_ALIASES: Final = {
    "cs_cache_fake": ((1, 66), "room_id user_id..."),
    "ph_cache_fake": ((1, 157), "room_id"),
    "dr_cache_fake": ((1, 157), "room_id"),
}
"""Aliases, with the first known release that has them, and their keys."""

EVENTS: Final = "get_event"
"""What vintages call the cache of events, which all releases have, and which no row names."""

ROOM_ALIASES: Final = ("dr_cache_fake", "cs_cache_fake")
"""Aliases that stand for what is cached of a room, the one that reaches most first."""


class CacheName(msgspec.Struct, frozen=True, kw_only=True):
    """A name that a row of ``caches`` may have, in the releases from `first` to `last`.

    `arguments` are those of its key; the first `texts` of them are texts. `is_tree`: a part of the key from
    its beginning drops all entries that begin so. `is_alias`: it stands for entries of other caches, and
    takes any number of keys from its last argument on.
    """

    name: str
    first: Release
    last: Release
    arguments: tuple[str, ...] = ()
    texts: int = 0
    is_tree: bool = False
    is_alias: bool = False

    @property
    def can_drop_all(self) -> bool:
        """Whether null keys are understood: receivers fail on them for aliases and packed keys."""
        return not self.is_alias and self.name not in PACKED

    def check(self, keys: tuple[str, ...]) -> None:
        """Raise `ConfigError` if no entry can have this key, or no row can name it."""
        name = self.name
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in "".join(keys)):
            raise ConfigError("a key is no text that PostgreSQL stores")
        if self.is_alias:
            least, most = 1, 1 if name != "cs_cache_fake" else len(keys) or 1
        else:
            least = most = self.texts
            if self.is_tree:
                least = 1
            elif self.texts < len(self.arguments):
                raise ConfigError(f"a key of {name} is not all text, which no row can name: use --all {name}")
        if not least <= len(keys) <= most:
            takes = " ".join(self.arguments[: self.texts]) or "none"
            part = ", or the first of them" if self.is_tree and self.texts > 1 else ""
            whole = f"; --all {name} drops the whole cache" if self.can_drop_all else ""
            raise ConfigError(f"the keys of {name} are {takes}{part}; {len(keys)} given{whole}")

    def drops(self, keys: tuple[str, ...] | None, there: "frozenset[str]") -> tuple[Invalidation, ...]:
        """What a process drops that has the caches `there`. The keys are as given to `check`; None is all."""
        if keys is not None and self.name in PACKED:
            keys = (pack(keys),)
        found = _NEWEST.expand(self.name, keys)
        return tuple(one for one in found if not self.is_alias or one.cache in there or one.cache == EVENTS)


def _read() -> tuple[CacheName, ...]:
    found = []
    for (first, last), lines in _LINES.items():
        for line in lines.strip().splitlines():
            name, *arguments = line.split()
            texts = next((n for n, one in enumerate(arguments) if one[0] == "("), len(arguments))
            found.append(
                CacheName(
                    name=name.rstrip("*"),
                    first=first,
                    last=last,
                    arguments=tuple(one.strip("()") for one in arguments),
                    texts=texts,
                    is_tree=name.endswith("*"),
                )
            )
    for name, (first, words) in _ALIASES.items():
        arguments = words.split()
        found.append(
            CacheName(
                name=name,
                first=first,
                last=KNOWN[-1],
                arguments=tuple(arguments),
                texts=len(arguments),
                is_alias=True,
            )
        )
    return tuple(found)


NAMES: Final = _read()


def parse_release(text: str) -> Release:
    """Return the release in a text such as ``1.163.2`` or ``1.163.0rc1 (b=...)``. Raises `ConfigError`."""
    found = re.match(r"(\d{1,3})\.(\d{1,4})(?![\d])", text)
    if found is None:
        raise ConfigError(f"{text!r} is no release of Synapse, such as 1.163")
    return int(found[1]), int(found[2])


def names_of(release: Release) -> dict[str, CacheName]:
    """The names of a release; of one with two shapes, the newer."""
    before = max((one for one in KNOWN if one <= release), default=KNOWN[0])
    after = min((one for one in KNOWN if one >= release), default=KNOWN[-1])
    found = sorted(
        (one for one in NAMES if one.first <= after and one.last >= before), key=lambda one: one.last
    )
    return {one.name: one for one in found}


def find_name(name: str, release: Release) -> CacheName:
    """The cache or alias of this name. Raises `ConfigError` if the release has none."""
    names = names_of(release)
    if found := names.get(name):
        return found
    which = _text(release)
    if spans := [one for one in NAMES if one.name == name]:
        first, last = min(one.first for one in spans), max(one.last for one in spans)
        where = f"from {_text(first)} to {_text(last)}" if first != last else f"in {_text(first)}"
        raise ConfigError(f"Synapse {which} has no cache {name}: it is known {where}")
    raise ConfigError(f"Synapse {which} has no cache {name}{suggest(name, list(names))}")


def _text(release: Release) -> str:
    return ".".join(map(str, release))
