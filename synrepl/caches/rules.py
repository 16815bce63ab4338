"""What each release of Synapse drops: a table of aliases and of rows, with their releases."""

from collections.abc import Iterable
from functools import cache
from typing import Final

import msgspec

from synrepl.caches.names import all_names
from synrepl.wire.dialect import ALWAYS, Dialect, Release, Span, span

_RULES: Final = """
[cs_cache_fake 0.99.2..]
is_host_joined room+host
was_host_joined room+host ..1.19
is_host_invited room+host 1.86..
get_users_in_room room 1.53.. members
get_users_in_room room ..1.53
get_current_hosts_in_room room 1.61.. members
get_users_in_room_with_profiles room 1.53.. members
get_users_in_room_with_profiles room 1.34..1.53
get_number_joined_users_in_room room 1.63.. members
get_member_counts room 1.115.. members
get_local_users_in_room room 1.63.. members
does_pair_of_users_share_a_room * 1.64.. members
get_user_in_room_with_profile room+user 1.63..
get_rooms_for_user_with_stream_ordering user ..0.99.4
get_rooms_for_user_with_stream_ordering user 1.69..1.111
get_rooms_for_user user 1.69..
_get_rooms_for_local_user_where_membership_is_inner user 1.112..
get_sliding_sync_rooms_for_user user 1.115..1.130
get_sliding_sync_rooms_for_user_from_membership_snapshots user 1.130..
get_room_summary room
get_current_state_ids room ..1.61
get_partial_current_state_ids room 1.61..
_get_current_state_event_id room 1.162..
get_sliding_sync_rooms_for_user * 1.116..1.130
get_room_type room 1.113..
get_room_encryption room 1.113..
get_sliding_sync_rooms_for_user_from_membership_snapshots * 1.130..

[ph_cache_fake dr_cache_fake 1.86..]
get_event *
have_seen_event room
get_latest_event_ids_in_room room
get_unread_event_push_actions_by_room_for_user room
get_relations_for_event room 1.109..
get_relations_for_event * ..1.109
_get_max_event_pos room 1.114..
get_threads room
get_room_type room 1.113..
get_room_encryption room 1.113..
get_metadata_for_event room 1.121..
_get_membership_from_event_id *
get_applicable_edit *
get_thread_id *
get_thread_id_for_receipts *
get_invited_rooms_for_local_user *
get_rooms_for_user_with_stream_ordering * ..1.111
get_rooms_for_user *
_get_rooms_for_local_user_where_membership_is_inner * 1.112..
get_sliding_sync_rooms_for_user * 1.115..1.130
get_sliding_sync_rooms_for_user_from_membership_snapshots * 1.130..
did_forget * 1.87..
get_forgotten_rooms_for_user * 1.87..
get_references_for_event *
get_thread_summary *
get_thread_participated *
_get_state_group_for_event *
get_event_ordering *
is_partial_state_event *
_get_joined_profile_from_event_id *

[dr_cache_fake 1.86..]
did_forget *
get_forgotten_rooms_for_user *
get_aliases_for_room room
_get_linearized_receipts_for_room room
is_room_blocked room
get_retention_policy_for_room room
_get_partial_state_servers_at_join room
is_partial_state_room room
get_current_hosts_in_room_ordered room
get_room_version_id room
get_account_data_for_room *
get_account_data_for_room_and_type *
get_tags_for_room * 1.116..
_get_forward_extremeties_for_room *
get_partial_current_state_ids room
_get_current_state_event_id room 1.162..
get_users_in_room room
get_current_hosts_in_room room
get_users_in_room_with_profiles room
get_number_joined_users_in_room room
get_member_counts room 1.115..
get_local_users_in_room room
get_room_summary room
is_host_invited *
is_host_joined *
does_pair_of_users_share_a_room *
get_user_in_room_with_profile *

[_get_e2e_cross_signing_signatures_for_device 1.139..]
_get_e2e_cross_signing_signatures_for_device packed

[_get_server_keys_json 1.158..]
_get_server_keys_json packed

[events:Event backfill]
get_event event_id
have_seen_event room_id+event_id 1.36..
get_metadata_for_event room_id+event_id 1.121..
get_latest_event_ids_in_room room_id
get_unread_event_push_actions_by_room_for_user room_id
_get_max_event_pos room_id 1.114..
_get_membership_from_event_id event_id 1.56..
get_event redacts redacts
get_relations_for_event redacts 1.55..1.109 redacts
get_relations_for_event room_id+redacts 1.109.. redacts
get_applicable_edit redacts 1.55.. redacts
get_thread_id redacts 1.70.. redacts
get_thread_id_for_receipts redacts 1.70.. redacts
get_invited_rooms_for_local_user state_key 1.9.. member
get_rooms_for_user state_key 1.70.. member
_get_rooms_for_local_user_where_membership_is_inner state_key 1.112.. member
get_sliding_sync_rooms_for_user_from_membership_snapshots state_key 1.130.. member
get_forgotten_rooms_for_user state_key 1.87.. member
did_forget state_key+room_id 1.87.. member
get_invited_rooms_for_user state_key ..1.9 member
get_rooms_for_user_with_stream_ordering state_key 1.70..1.111 member
get_sliding_sync_rooms_for_user state_key 1.115..1.130 member
get_room_type room_id 1.113.. create
get_room_encryption room_id 1.113.. encryption
get_sliding_sync_rooms_for_user * 1.116..1.130 listed
get_sliding_sync_rooms_for_user_from_membership_snapshots * 1.130.. listed
get_relations_for_event relates_to 0.99.5..1.109 relates_to
get_relations_for_event room_id+relates_to 1.109.. relates_to
get_references_for_event relates_to 1.73.. relates_to
get_applicable_edit relates_to 0.99.5.. relates_to
get_thread_summary relates_to 1.55.. relates_to
get_thread_participated relates_to 1.55.. relates_to
get_threads room_id 1.70.. relates_to
get_aggregation_groups_for_event relates_to 0.99.5..1.79 relates_to
get_mutual_event_relations_for_rel_type relates_to 1.69..1.70 relates_to

[events:State 0.99.4..]
get_rooms_for_user_with_stream_ordering state_key ..1.111 member
get_rooms_for_user state_key 1.69.. member
get_sliding_sync_rooms_for_user * 1.116..1.130 member
get_sliding_sync_rooms_for_user_from_membership_snapshots * 1.130.. member
get_room_type room_id 1.113.. create
get_room_encryption room_id 1.113.. encryption
get_sliding_sync_rooms_for_user * 1.116..1.130 listed
get_sliding_sync_rooms_for_user_from_membership_snapshots * 1.130.. listed

[events:StateAll 1.96..]
get_rooms_for_user_with_stream_ordering * ..1.111
get_rooms_for_user *
get_sliding_sync_rooms_for_user_from_membership_snapshots * 1.130..
get_room_type room_id 1.113..
get_room_encryption room_id 1.113..
get_sliding_sync_rooms_for_user * 1.116..1.130

[tag_account_data ..1.76]
get_tags_for_user user_id

[account_data]
get_account_data_for_user user_id ..1.78
get_account_data_for_room user_id+room_id 0.27..
get_account_data_for_room_and_type user_id+room_id+data_type 0.27..
get_global_account_data_for_user user_id 1.78..
get_room_account_data_for_user user_id 1.78..
get_global_account_data_by_type_for_user data_type+user_id ..1.52 no_room
get_global_account_data_by_type_for_user user_id+data_type 1.52.. no_room
get_tags_for_user user_id 1.76.. tag
get_tags_for_room user_id+room_id 1.116.. tag_in_room
get_tags_for_room user_id 1.116.. tag_elsewhere

[presence]
_get_presence_for_user user_id

[push_rules]
get_push_rules_for_user user_id
get_push_rules_enabled_for_user user_id ..1.67

[receipts]
get_receipts_for_user user_id+receipt_type ..1.59
get_linearized_receipts_for_room room_id ..0.33
get_last_receipt_event_id_for_user user_id+room_id+receipt_type ..1.59
get_users_with_read_receipts_in_room room_id 0.27..1.59
get_receipts_for_room room_id+receipt_type 0.27..1.59
_get_linearized_receipts_for_room room_id 0.33..
_get_receipts_for_user_with_orderings user_id+receipt_type 1.59..
_get_last_receipt_event_id_for_user user_id+room_id+receipt_type 1.59..1.62
get_unread_event_push_actions_by_room_for_user room_id 1.62..

[device_lists]
_get_cached_devices_for_user user_id 0.99.3..1.10
get_cached_devices_for_user user_id 1.10..1.13
_get_cached_user_device user_id 0.99.3..1.13
get_device_list_last_stream_id_for_remote user_id 0.99.3..1.13
get_cached_devices_for_user user_id 1.13..1.110 of_user
_get_cached_user_device user_id 1.13..1.110 of_user
get_device_list_last_stream_id_for_remote user_id 1.13..1.110 of_user
_get_e2e_device_keys_for_federation_query_inner user_id 1.86..1.110 of_user
get_cached_devices_for_user user_id 1.110.. not_calculated
_get_cached_user_device user_id 1.110.. not_calculated
get_device_list_last_stream_id_for_remote user_id 1.110.. not_calculated
_get_e2e_device_keys_for_federation_query_inner user_id 1.110.. not_calculated

[un_partial_stated_event 1.75..]
is_partial_state_event event_id
_get_state_group_for_event event_id
get_event event_id rejection

[thread_subscriptions 1.135..]
get_subscription_for_thread user_id+room_id+event_id
get_subscribers_to_thread room_id+event_id 1.136..

[sticky_events 1.148..]
get_event event_id 1.162..
"""
"""What is dropped: in brackets the aliases, or the streams and classes of rows, with the releases that have
them; below, line by line, a cache, what of it, in which releases, and when.

A key is its parts with ``+`` between: of an alias the room, each server (`host`) and each user of its keys,
otherwise fields of the row. ``*`` is all entries; ``packed`` are keys that are each sent as one text.
Releases are from the first to before the last. Events are cached by event alone, so that those of one room
cannot be told from others. The last word is explained in `synrepl.caches.vintages`; ``members``: if an alias
has users.
"""


class Rule(msgspec.Struct, frozen=True):
    """A line of the table, for one of its sources: an alias, or a stream with the class of its row."""

    source: str
    row: str
    cache: str
    key: str
    when: str
    spans: tuple[Span, ...]
    """The releases of the line, of its source and of its cache."""

    def holds(self, release: Release, *, others: bool) -> bool:
        """Whether the release drops this; with `others` also if it lacks the alias, row or cache."""
        line, source, *cached = self.spans
        if others and (release not in source or not any(release in one for one in cached)):
            return True
        return release in line and release in source


def _span(words: list[str]) -> Span:
    """Take the releases out of the words of a line."""
    for word in words:
        if ".." in word:
            words.remove(word)
            since, _, until = word.partition("..")
            return span(since, until)
    return ALWAYS


@cache
def _rules() -> tuple[Rule, ...]:
    lives = {name: [one.span for one in forms] for name, forms in all_names().items()}
    found, sources, there = [], list[str](), ALWAYS
    for line in filter(None, _RULES.splitlines()):
        words = line.strip("[]").split()
        releases = _span(words)
        if line.startswith("["):
            sources, there = words, releases
            continue
        name, key, *when = words
        for one in sources:
            source, _, row = one.partition(":")
            spans = (releases, there, *lives.get(name, [ALWAYS]))
            found.append(Rule(source, row, name, key, "".join(when), spans))
    return tuple(found)


def rules_of(dialects: Iterable[Dialect], *, others: bool) -> list[Rule]:
    """The rules of any of these releases, in the order of the table; without releases, all rules."""
    releases = [one.release for one in dialects]
    return [
        rule
        for rule in _rules()
        if not releases or any(rule.holds(release, others=others) for release in releases)
    ]


def later_sources(name: str, release: Release) -> dict[str, Release]:
    """What drops a cache in newer releases, and has not done so in this one: each source, and since when.

    Only sources that this release has: its own changes of this kind leave an entry as it was.
    """
    drops = {one.source for one in _rules() if one.cache == name and one.holds(release, others=False)}
    found: dict[str, Release] = {}
    for one in _rules():
        line, there, *lives = one.spans
        has_both = release in there and any(release in life for life in lives)
        if one.cache == name and one.source not in drops and has_both and line.since > release:
            found[one.source] = min(found.get(one.source, line.since), line.since)
    return found
