"""What Synapse keeps that no row of the stream reaches: why, what ends it, and what drops it along.

`why_unreachable` answers for a name that people find in metrics, logs, settings or the source. Names that
rows have are in `synrepl.caches.names`.
"""

import re
from typing import Final, NamedTuple

from synrepl.wire.dialect import Span, span, whole_release


class _Kept(NamedTuple):
    """A cache that is in no store, in the releases of `spans`: what has it, and whose restart empties it.

    `along` are the rows that drop it too, each with the releases in which they do.
    """

    spans: tuple[Span, ...]
    where: str
    restart: str
    along: tuple[tuple[str, Span], ...] = ()


_OF_SERVICE: Final = "each application service has its own, in each process that asked for it"
_NOTIFIER: Final = (
    "the process that notifies application services (the main process, unless notify_appservices_from_worker"
    " names another)"
)
_OF_MEMBERS: Final = (
    ("get_users_in_room ROOM", span("1.55", "1.63")),
    ("get_users_in_room ROOM, then get_local_users_in_room ROOM", span("1.63")),
)
_OF_ROOM: Final = (("get_aliases_for_room ROOM (its aliases)", span("1.74")), *_OF_MEMBERS)
_NOTICES: Final = "the sender of server notices has it: only a new room of notices drops it"
_OF_STATE: Final = "the reader of state has it, and not a store"
_ASKED: Final = "each process that answers from it"

_ELSEWHERE: Final = {
    "_matches_user_in_member_list": _Kept(
        (span("0.21", "1.22"), span("1.55")), _OF_SERVICE, _NOTIFIER, _OF_MEMBERS
    ),
    "matches_user_in_member_list": _Kept((span("1.22", "1.55"),), _OF_SERVICE, _NOTIFIER),
    "is_interested_in_room": _Kept((span("1.55"),), _OF_SERVICE, _NOTIFIER, _OF_ROOM),
    "is_interested_in_event": _Kept((span("1.55"),), _OF_SERVICE, _NOTIFIER, _OF_ROOM),
    "is_interested_in_presence": _Kept(
        (span("1.22"),), _OF_SERVICE, _NOTIFIER, (("get_rooms_for_user USER", span("1.140")),)
    ),
    "maybe_get_notice_room_for_user": _Kept((span("1.60"),), _NOTICES, "the main process"),
    "get_or_create_notice_room_for_user": _Kept((span("1.13"),), _NOTICES, "the main process"),
    "get_notice_room_for_user": _Kept((span("0.30", "1.13"),), _NOTICES, "the main process"),
    "generate_room_entry": _Kept(
        (span("0.24"),), "the list of public rooms has it", _ASKED, (("get_aliases_for_room ROOM", Span()),)
    ),
    "_generate_room_entry": _Kept((span("0.21", "0.24"),), "the list of public rooms has it", _ASKED),
    "_get_joined_hosts": _Kept((span("1.89"),), _OF_STATE, _ASKED),
    "get_server_acl_for_room": _Kept((span("1.94"),), _OF_STATE, _ASKED),
    "check_avatar_size_and_mime_type": _Kept((span("1.52"),), "the handler of profiles has it", _ASKED),
    "get_state_group_delta": _Kept(
        (span("1.8"),), "groups of states never change once they are written", _ASKED
    ),
    "_get_interested_in": _Kept(
        (span("0.21", "1.64"),), "presence has it", "the writer of presence (stream_writers)"
    ),
    "_get_rules_for_room": _Kept(
        (span("0.22", "1.23"),), "the push rules of rooms have it", "each writer of events"
    ),
}

_BULK: Final = {
    "bulk_get_push_rules": "get_push_rules_for_user",
    "get_presence_for_users": "_get_presence_for_user",
    "_get_rooms_for_users": "get_rooms_for_user",
    "get_rooms_for_users": "get_rooms_for_user",
    "_get_linearized_receipts_for_rooms": "_get_linearized_receipts_for_room",
    "_get_state_group_for_events": "_get_state_group_for_event",
    "_have_seen_events_dict": "have_seen_event",
    "are_users_erased": "is_user_erased",
    "bulk_get_room_encryption": "get_room_encryption",
    "bulk_get_room_type": "get_room_type",
    "get_applicable_edits": "get_applicable_edit",
    "get_destination_retry_timings_batch": "get_destination_retry_timings",
    "get_device_list_last_stream_id_for_remotes": "get_device_list_last_stream_id_for_remote",
    "get_membership_from_event_ids": "_get_membership_from_event_id",
    "_get_user_ids_from_membership_event_ids": "_get_user_id_from_membership_event_id",
    "get_partial_state_events": "is_partial_state_event",
    "get_references_for_events": "get_references_for_event",
    "get_server_keys_json": "_get_server_keys_json",
    "get_server_keys_json_for_remote": "get_server_key_json_for_remote",
    "get_subset_users_in_room_with_profiles": "get_user_in_room_with_profile",
    "get_thread_summaries": "get_thread_summary",
    "get_threads_participated": "get_thread_participated",
    "is_partial_state_room_batched": "is_partial_state_room",
    "_bulk_get_max_event_pos": "_get_max_event_pos",
    "_do_users_share_a_room": "does_pair_of_users_share_a_room",
    "_do_users_share_a_room_joined_or_invited": "does_pair_of_users_share_a_room_joined_or_invited",
    "_get_bare_e2e_cross_signing_keys_bulk": "_get_bare_e2e_cross_signing_keys",
    "_get_current_state_event_ids": "_get_current_state_event_id",
    "_get_e2e_cross_signing_signatures_for_devices": "_get_e2e_cross_signing_signatures_for_device",
}
"""Methods that read many at once, by the cache that has what they read."""

_WHILE_MADE: Final = (
    "only requests that come while it is made share it, and it is not kept after that; no setting rules it"
)
_FOR: Final = "it is kept for {} by the process that answers; no setting rules that"
_OF_SYNC: Final = (
    "the answer of a /sync, given again to a request that equals it (user, device, since, filter, timeout):"
    " it is kept for caches: sync_response_cache_duration (2 minutes if not set, since 1.62; before, not at"
    " all; 0 keeps none) by the process that answers. That time ends it, and a restart of that process; a"
    " failed answer is kept as well by releases before 1.156 (element-hq/synapse#19845)"
)
_OF_EACH: Final = "it is in the memory of each process"
_OF_SENDERS: Final = (
    "each process that goes to other servers keeps it for {}, until its restart at the latest"
)
_OF_HOMESERVER: Final = "the list of public rooms of another homeserver"
_ANSWERS: Final = (
    (r"(/_matrix/client/\w+)?/?sync|sync_response_cache(_duration)?", _OF_SYNC),
    (r"remote_room_list", f"{_OF_HOMESERVER}: {_FOR.format('30 seconds')}"),
    (r"room_list|public_rooms?", f"the list of public rooms: {_WHILE_MADE}"),
    (r"state(_ids)?_resp", f"the state of a room for another homeserver: {_FOR.format('30 seconds')}"),
    (r"fed_txn_handler", f"the answer to a transaction of another homeserver: {_FOR.format('30 seconds')}"),
    (r"initial_sync(_cache)?", f"the answer of the old initialSync: {_WHILE_MADE}"),
    (r"\w+_hierarchy", f"the rooms of a space: {_WHILE_MADE}"),
    (r"room_upgrade", f"the answer to the upgrade of a room: {_FOR.format('5 minutes')}"),
    (r"repl\.\w+", f"the answer to a request of another process: {_FOR.format('30 minutes')}"),
    (r"as_protocol_meta", f"the protocols of an application service: {_FOR.format('1 hour')}"),
    (
        r"mas_token_introspection",
        f"what the authentication service says of an access token: {_FOR.format('2 minutes')}",
    ),
)
"""Answers that are kept, by the name of their cache or setting: how long, and what ends it.

Read in 1.0.0, 1.66.0 and 1.163.2, which agree where they have the cache; of failed ones in 1.30.0,
1.46.0, 1.66.0, 1.150.0, 1.153.0, 1.155.0, 1.156.0, 1.157.1 and 1.163.
"""

_MEMORIES: Final = (
    (
        r"(had_)?\.?well[-_]known(_cache)?",
        "what .well-known of another homeserver says",
        _OF_SENDERS.format(
            "as long as its Cache-Control tells (5 minutes to 48 hours; 24 hours if it tells nothing, an hour"
            " if it is not valid)"
        ),
    ),
    (
        r"srv(_cache|_records?|_resolver)?",
        "the SRV records of other homeservers",
        _OF_SENDERS.format("the time that DNS gives, and for as long as DNS fails"),
    ),
    (
        r"rate_?limit(er|s)?|rc_[a-z_]+",
        "the count of what a user, an address or a room has done",
        f"{_OF_EACH} until it runs out, or a restart; limits of one user are in the table ratelimit_override",
    ),
    (
        r"jwks|provider_metadata|oidc(_metadata)?",
        "what an identity provider publishes",
        f"{_OF_EACH} until its restart; the keys are read again when a signature does not fit",
    ),
    (
        r"typing",
        "the list of those who are typing",
        f"{_OF_EACH} that reads or writes typing (stream_writers) until it runs out, or the writer's restart",
    ),
    (
        r"app_?services?(_config_files)?|services_cache",
        "the files of application services",
        f"{_OF_EACH} from its start to its restart",
    ),
)
"""What processes have in their memory, by its name: what it is, and for how long.

.well-known was read in 1.30.0, 1.66.0 and 1.163.0, the others in 1.163.0 alone.
"""


_FOR_A_TIME: Final = {
    "get_destination_retry_timings": "5 minutes",
    "get_pdu_cache": "2 minutes",
    "get_room_hierarchy_cache": "5 minutes",
    "lazy_loaded_members_cache": "30 minutes",
    "lazy_loaded_profile_fields_cache": "30 minutes",
    "url_previews": "1 hour",
    "url_preview": "1 hour",
    "last_device_delete_cache": "30 minutes",
    "device_update_edu": "30 minutes",
    "signing_key_update_edu": "30 minutes",
    "_external_cache_joined_hosts_updates": "30 minutes",
    "state_conflict_resolution_cache": "1 hour after its last use",
}
"""What a process forgets after a time, which no setting rules, by the name that metrics and logs have.

Read in 1.17, 1.34, 1.50, 1.66, 1.100 and 1.163, which agree where they have the cache.
"""

_BEFORE_ROWS: Final = {"get_destination_retry_timings": span("0.33.6", "1.35")}
"""Caches that rows drop in other releases, and which of these forget them after a time instead."""


_OTHERS: Final = (
    (
        r"_?\w*_stream(_change)?_cache|\w+ChangeCache",
        "it remembers what changed up to which position, from the rows of its stream",
    ),
    (
        r"\*?getEvent\*?|_?get_event(_cache)?",
        "it has events, which no row names; since 1.86 --room ROOM drops all cached events",
    ),
    (
        r"\*?stateGroup(Members)?Cache\*?|state_cache|_state_group(_members)?_cache",
        "groups of states never change once they are written",
    ),
    (
        r"sync_valid_filter",
        "it has whether the text of a filter is valid, which depends on that text alone",
    ),
)
"""Caches of other kinds, as metrics and logs call them, and why no row drops them."""


def kept_answer(name: str) -> str:
    """Say which answer a cache of this name keeps, how long, and what ends that; "" if it keeps none."""
    if said := next((said for pattern, said in _ANSWERS if re.fullmatch(pattern, name)), ""):
        return said
    return next((f"{what}: {how}" for pattern, what, how in _MEMORIES if re.fullmatch(pattern, name)), "")


def runs_out(name: str, release: tuple[int, ...]) -> str:
    """Say how long each process keeps what rows drop in other releases; "" if this one does not do so."""
    if (has := _BEFORE_ROWS.get(name)) is None or whole_release(release) not in has:
        return ""
    return (
        f"each process that reads it keeps {name} for {_FOR_A_TIME[name]} ({has}); wait, or restart these"
        " processes"
    )


def why_unreachable(name: str, release: tuple[int, ...]) -> str:
    """Say why no row drops what has this name in a release, and what does; "" if nothing is known of it."""
    which = ".".join(map(str, release))
    if said := kept_answer(name):
        return f"no row drops {name} of Synapse {which}: it is {said}"
    if said := runs_out(name, release):
        return f"no row drops {name} of Synapse {which}: {said}"
    if name in _FOR_A_TIME and name not in _BEFORE_ROWS:
        return (
            f"no row drops {name}: in the releases that have it, each process keeps its own for"
            f" {_FOR_A_TIME[name]}; to empty it before, restart the process"
        )
    if (kept := _ELSEWHERE.get(name)) is not None:
        at = whole_release(release)
        if not any(at in one for one in kept.spans):
            has = " and ".join(map(str, kept.spans))
            return f"Synapse {which} does not have {name} ({has}), and no row drops it in any release"
        along = [row for row, has_row in kept.along if at in has_row]
        other = f"; what drops it along: {'; or '.join(along)}" if along else ""
        return (
            f"no row drops {name} of Synapse {which} by its name: {kept.where}{other}; to empty it, restart"
            f" {kept.restart}"
        )
    if (one_by_one := _BULK.get(name)) is not None:
        return f"{name} has no entries of its own: it reads many of {one_by_one}; name that cache"
    if why := next((why for pattern, why in _OTHERS if re.fullmatch(pattern, name)), ""):
        return f"no row drops {name} of Synapse {which}: {why}; to empty it, restart the process that has it"
    return ""
