"""The streams of a Synapse database, with their sequences and tables.

The names are those of releases up to 1.163 (docs/reference/peers.md#ids). The examination skips what an older
database lacks.
"""

from typing import Final

from synrepl.storage.ids.layout import IdStream, IdTable

__all__ = ["MARKS", "STREAMS"]

MARKS: Final = ("schema_version", "applied_schema_deltas", "stream_positions")
"""A set of tables that only a Synapse database has."""


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
        "account_data",
        "account_data_sequence",
        "room_account_data",
        "room_tags_revisions",
        "account_data",
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
