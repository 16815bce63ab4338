"""The streams of Synapse by their names: on the wire, in a sync token, in the database, in the configuration.

Read on releases 1.0.0, 1.66.0 and 1.163.2 (docs/reference/peers.md).
"""

from collections.abc import Sequence
from typing import Final

import msgspec


class TokenField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a sync token, and its stream on the wire. `note` is what is special about it."""

    name: str
    stream: str
    note: str = ""


TOKEN_FIELDS: Final = (
    TokenField(name="room", stream="events"),
    TokenField(name="presence", stream="presence"),
    TokenField(
        name="typing",
        stream="typing",
        note="begins at 0 again when its writer restarts, so no process waits for it",
    ),
    TokenField(name="receipt", stream="receipts"),
    TokenField(name="account_data", stream="account_data"),
    TokenField(name="push_rules", stream="push_rules"),
    TokenField(name="to_device", stream="to_device"),
    TokenField(name="device_list", stream="device_lists"),
    TokenField(name="groups", stream="groups", note="unused since 1.61; any number may be here"),
    TokenField(name="un_partial_stated_rooms", stream="un_partial_stated_room"),
    TokenField(name="thread_subscriptions", stream="thread_subscriptions"),
    TokenField(name="sticky_events", stream="sticky_events"),
    TokenField(name="quarantined_media", stream="quarantined_media"),
    TokenField(name="profile_updates", stream="profile_updates"),
)
"""In the order of the token. Older releases have only the first ones."""

BY_NAME: Final = {field.name: field for field in TOKEN_FIELDS}

WRITER_KEYS: Final = {
    "events": "events",
    "backfill": "events",
    "sticky_events": "events",
    "profile_updates": "events",
    "presence": "presence",
    "presence_federation": "presence",
    "typing": "typing",
    "receipts": "receipts",
    "push_rules": "push_rules",
    "device_lists": "device_lists",
    "to_device": "to_device",
    "account_data": "account_data",
    "tag_account_data": "account_data",
    "thread_subscriptions": "thread_subscriptions",
    "quarantined_media": "quarantined_media_changes",
}
"""The key below `stream_writers`, in the homeserver's configuration, of the processes that write a stream."""

POSITION_NAMES: Final = {
    **{name: f"{name}_stream" for name in ("presence", "push_rules", "device_lists")},
    **{name: f"{name}_stream" for name in ("un_partial_stated_room", "un_partial_stated_event")},
}
"""The names of streams in the table `stream_positions` and in metrics, where they differ from the wire."""

WIRE: Final = {
    POSITION_NAMES.get(name, name): name
    for name in (
        *("events", "backfill", "account_data", "caches", "device_lists", "presence", "profile_updates"),
        *("push_rules", "pushers", "quarantined_media", "receipts", "sticky_events"),
        *("thread_subscriptions", "to_device", "un_partial_stated_event", "un_partial_stated_room"),
    )
}
"""The names on the wire by those in `stream_positions` and in metrics. A name that is not here is of ids that
are not replicated, as ``e2e_cross_signing_keys``."""

MAIN_PROCESS: Final = (
    *("pushers", "un_partial_stated_room", "un_partial_stated_event", "federation"),
    *("public_rooms", "user_signature", "groups"),
)
"""Streams that only the main process writes. `public_rooms`, `user_signature` and `groups` are gone."""

NOT_STORED: Final = ("typing", "presence_federation", "federation", "caches", "groups")
"""Streams without rows in `stream_positions`: they live in memory, or have no positions."""


def written_by(stream: str) -> str:
    """Return which processes write a stream, as short as a cell of a table."""
    if stream == "caches":
        return "every process"
    if stream in MAIN_PROCESS:
        return "main process"
    key = WRITER_KEYS.get(stream)
    return "" if key is None else f"stream_writers: {key}"


def writers_sentence(stream: str) -> str:
    """Return which processes write a stream, as a sentence."""
    if stream == "caches":
        return "Every process writes the stream caches."
    if stream in MAIN_PROCESS:
        return f"The main process writes the stream {stream}: no key of stream_writers moves it."
    key = WRITER_KEYS.get(stream)
    if key is None:
        return f"Synapse up to 1.163 has no stream {stream}: it is of a newer release, or an operator's own."
    return (
        f"The stream {stream} is written by the processes that the homeserver's configuration lists at"
        f" stream_writers: {key}, or by the main process if that key is missing."
    )


POSITION_QUERY: Final = (
    "SELECT stream_name, instance_name, stream_id FROM stream_positions WHERE stream_name IN ({})"
)


def position_query(names: Sequence[str]) -> str:
    """Return the SQL that shows how far each writer of streams is. `names` are those in the database."""
    return POSITION_QUERY.format(", ".join(f"'{name}'" for name in names))


def lag_advice(streams: Sequence[str]) -> list[str]:
    """Return how to find out why a process is behind in streams, of which there is at least one."""
    advice = []
    if stored := [POSITION_NAMES.get(one, one) for one in streams if one not in NOT_STORED]:
        advice.append(f"see what is written: {position_query(stored)}")
    if measured := [POSITION_NAMES.get(one, one) for one in streams if one in WIRE.values()]:
        advice.append(
            "see what this process has (1.163): the metric synapse_storage_stream_current_position, with the"
            f" stream_name {', '.join(measured)}"
        )
    advice.append(
        "see what is announced: synrepl tail redis://HOST --server-name NAME --stream"
        f" {','.join(streams)}. If the database moves and nothing is announced, the writer is at fault:"
        " restart it, and update it if that does not help (element-hq/synapse#20080). If rows are"
        " announced, this process is slow or was disconnected: look at its load and its log"
    )
    return advice
