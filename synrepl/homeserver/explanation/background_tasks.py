"""What the tasks of Synapse in the background do, by their names, and what is missing where one fails."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.wire.text import printable


class BackgroundTask(NamedTuple):
    """A task: what it does, and what is missing if it failed. `is_minor`: nobody who uses Synapse notices."""

    does: str
    missing: str
    is_minor: bool = False


_STATISTICS: Final = BackgroundTask(
    "counts for statistics", "Some figures of metrics or of the report are missing, nothing else.", True
)
_CLEANING: Final = BackgroundTask(
    "deletes what is old", "Nothing is missing: it tries again, and rows that are old stay longer.", True
)
_PUSH: Final = BackgroundTask("sends pushes", "Notifications come later, with the next event.")
_PRESENCE: Final = BackgroundTask("follows who is online", "Presence is stale until the next change.", True)
_TYPING: Final = BackgroundTask("tells who is typing", "Some notices of typing are missing.", True)
_DEVICES: Final = BackgroundTask(
    "asks other homeservers for devices of their users", "It tries again: keys of these users come later."
)

TASKS: Final = {
    "phone_stats_home": _STATISTICS,
    "generate_": _STATISTICS,
    "_count_known_servers": _STATISTICS,
    "read_forward_extremities": _STATISTICS,
    "_get_stats_for_federation_staging": _STATISTICS,
    "reap_monthly_active_users": _STATISTICS,
    "stats.": BackgroundTask(
        "follows events for statistics of rooms and users", "Statistics stand still until it succeeds.", True
    ),
    "user_directory.": BackgroundTask(
        "follows events for the directory of users",
        "A search for users misses what is new until it succeeds; messages are not concerned.",
        True,
    ),
    "update_client_ips": BackgroundTask(
        "stores when and from where users were seen", "These records are missing, nothing else.", True
    ),
    "update_recently_accessed_media": _STATISTICS,
    "rotate_notifs": BackgroundTask(
        "sums up counts of notifications", "It tries again each 30 s: counts may be wrong, messages are not."
    ),
    "event_push_action_stream_orderings": _CLEANING,
    "prune_": _CLEANING,
    "_cleanup": _CLEANING,
    "cleanup_": _CLEANING,
    "clean_": _CLEANING,
    "cull_": _CLEANING,
    "delete_": _CLEANING,
    "_delete_state_groups": _CLEANING,
    "_clear_old": _CLEANING,
    "_censor_redactions": _CLEANING,
    "expire_url_cache_data": _CLEANING,
    "apply_media_retention_rules": _CLEANING,
    "_reap_stale_read_write_locks": _CLEANING,
    "LruCache._expire_old_entries": _CLEANING,
    "httppush": _PUSH,
    "http_pusher": _PUSH,
    "emailpush": _PUSH,
    "start_pushers": _PUSH,
    "on_new_notifications": _PUSH,
    "presence.": _PRESENCE,
    "handle_presence": _PRESENCE,
    "persist_presence": _PRESENCE,
    "bump_presence": _PRESENCE,
    "typing.": _TYPING,
    "_send_changes_in_typing": _TYPING,
    "_maybe_retry_device_resync": _DEVICES,
    "resync_device": _DEVICES,
    "_handle_new_device_update": _DEVICES,
    "notify_interested_services": BackgroundTask(
        "tells application services of events", "They get these later, or not at all (those that pass by)."
    ),
    "as-": BackgroundTask("sends events to application services", "They are sent again later, in order."),
    "as_scheduler": BackgroundTask(
        "starts what sends events to application services", "Application services may get nothing: restart."
    ),
    "federation_transaction_transmission_loop": BackgroundTask(
        "sends events to one other homeserver", "That homeserver gets them later."
    ),
    "process_event_queue_for_federation": BackgroundTask(
        "follows events for other homeservers", "They get nothing until it succeeds."
    ),
    "_process_incoming_pdus_in_room": BackgroundTask(
        "takes in what other homeservers sent for a room", "Events of that room come later."
    ),
    "handle_queued_pdus": BackgroundTask(
        "takes in what other homeservers sent for a room", "Events of that room come later."
    ),
    "resume_sync_partial_state_room": BackgroundTask(
        "completes a room that was joined fast", "The room stays incomplete until it succeeds."
    ),
    "persist_events": BackgroundTask("stores events", "These events were not stored, or are tried again."),
    "fetch_events": BackgroundTask("reads events from the database", "Requests that wait for them fail."),
    "background_updates": BackgroundTask(
        "brings the database up to date in the background", "Updates wait until the next start."
    ),
    "redis_ping": BackgroundTask("asks Redis whether it lives", "The connection to Redis is made anew."),
    "send-cmd": BackgroundTask(
        "sends a command to the other processes over Redis",
        "The others were not told: their caches may be stale.",
    ),
    "Lock._renew": BackgroundTask(
        "keeps a lock of this process alive", "Another process may take the lock after two minutes."
    ),
}
"""The tasks, by the beginning of their names."""


def background_task(name: str) -> BackgroundTask | None:
    """Return what is known of the task of that name: by the longest beginning."""
    known = max((start for start in TASKS if name.startswith(start)), key=len, default=None)
    return TASKS[known] if known is not None else None


def _task(match: Match, writers: Writers) -> Passage | None:
    """Explain a task in the background that failed by what it does."""
    task = background_task(match.values[0])
    if task is None:
        return None
    name = printable(match.values[0])
    words = [f"A task in the background failed: {name}, which {task.does}. {task.missing}"]
    severity = "look" if task.is_minor else match.message.severity
    return msgspec.structs.replace(passage_of(match, words, [match.message.do], []), severity=severity)


DETAILS: Final[Mapping[str, Detail]] = {"background_task_failed": _task}
"""What explains messages by their values, by the key of the message."""
