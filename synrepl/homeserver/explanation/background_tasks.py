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
_DELAYED: Final = BackgroundTask(
    "sends events at a later time, and takes back those that are no longer needed (MSC4140)",
    "Some are sent late, or though they should not be, as that somebody left a call; other events are not"
    " concerned.",
    True,
)
_SCHEDULED: Final = BackgroundTask(
    "does what is to be done later (table scheduled_tasks), such as the deletion of a room",
    "It is tried again after a while; until then it is not done.",
)
_PURGE: Final = BackgroundTask(
    "deletes a room, or old events of one",
    "What was not deleted yet is still there: ask for the deletion again.",
)
_BACKFILL: Final = BackgroundTask(
    "fetches older events of a room from other homeservers",
    "They are fetched later, or with the next try.",
    True,
)
_SERVER_STATES: Final = BackgroundTask(
    "stores since when a homeserver does not answer",
    "That homeserver is asked more often than it should be, or later than it could be.",
    True,
)
_MEMBERS_OF_GROUPS: Final = BackgroundTask(
    "renews what proves the members of groups (communities, removed in 1.61)",
    "Messages are not concerned.",
    True,
)
_COMMANDS: Final = BackgroundTask(
    "takes in what other processes tell (rows and positions of streams)",
    "Rows of one stream were not taken in: caches and waiting requests may lack them.",
)
_SENT_STREAMS: Final = BackgroundTask(
    "sends the rows of streams to the other processes", "They are not told of what is new until it succeeds."
)
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
    "delayed_events.": _DELAYED,
    "_schedule_db_events": _DELAYED,
    "_send_events": _DELAYED,
    "launch_scheduled_tasks": _SCHEDULED,
    "launch_task_by_id": _SCHEDULED,
    "task-": _SCHEDULED,
    "_purge_history": _PURGE,
    "purge_history": _PURGE,
    "shutdown_and_purge_room": _PURGE,
    "maybe_backfill_in_the_background": _BACKFILL,
    "_maybe_backfill_inner": _BACKFILL,
    "_process_new_pulled_events": _BACKFILL,
    "_handle_old_staged_events": BackgroundTask(
        "begins anew with events of other homeservers that were stored but not handled yet",
        "It looks again each minute, at the rooms in another order: those after the one at which it stops"
        " wait for a later round, or for a new event.",
    ),
    "_DestinationWakeupQueue": BackgroundTask(
        "begins to send to other homeservers what waits for them", "It comes with the next event for them."
    ),
    "store_retry_timings": _SERVER_STATES,
    "_PresenceQueue": _PRESENCE,
    "PresenceHandler.": _PRESENCE,
    "WorkerPresenceHandler.": _PRESENCE,
    "renew_attestations": _MEMBERS_OF_GROUPS,
    "process-replication-data": _COMMANDS,
    "replication-": _COMMANDS,
    "replication_notifier": _SENT_STREAMS,
    "subscribe-replication": BackgroundTask(
        "subscribes to the channels of Redis", "This process receives nothing until it is connected anew."
    ),
    "process_receipts_for_federation": BackgroundTask(
        "tells other homeservers what was read", "They are not told of these receipts.", True
    ),
    "_save_and_send_ack": BackgroundTask(
        "stores how far the sending to other homeservers is", "After a restart some things are sent twice."
    ),
    "notify_app_services": BackgroundTask(
        "tells application services of events", "They get these later, with the next event."
    ),
    "retry": BackgroundTask("sends events to application services", "They are sent again later, in order."),
    "user_parter_loop": BackgroundTask(
        "takes deactivated users out of their rooms", "They stay members until the next start, which goes on."
    ),
    "room_forgetter.": BackgroundTask(
        "forgets rooms that users have left", "Rooms stay in the lists of users who left.", True
    ),
    "redact_related_events": BackgroundTask(
        "redacts what belongs to a redacted event", "Some of these events are not redacted."
    ),
    "retry_make_join": BackgroundTask(
        "accepts an invitation for a user", "The user is invited still, and can accept by hand.", True
    ),
    "send_dummy_events_to_fill_extremities": BackgroundTask(
        "sends empty events to rooms with many newest events", "Such rooms stay slow until it succeeds.", True
    ),
    "_schedule_next_expiry": BackgroundTask(
        "deletes messages that were to disappear", "They stay longer, until the next start.", True
    ),
    "account_validity_set_expiration_dates": BackgroundTask(
        "gives accounts a time when they end", "Accounts without one do not end."
    ),
    "send_renewals": BackgroundTask(
        "mails users whose account will end", "They get that mail later, or with the next round."
    ),
    "preload_oidc_metadata": BackgroundTask(
        "asks the identity provider for what logins need",
        "It is asked again at the first login, which fails if it does not answer then either.",
        True,
    ),
    "Update remote profile": BackgroundTask(
        "asks other homeservers for names and pictures of their users", "They stay old for a while.", True
    ),
    "check_event_push_backfill_thread_id": _STATISTICS,
    "_report_device_list_conversion_lag": _STATISTICS,
    "sighup": BackgroundTask(
        "reloads the log configuration and certificates", "What it has not reloaded is as before."
    ),
    "LockStore._on_shutdown": BackgroundTask(
        "gives back the locks of this process when it ends", "They end by themselves after two minutes.", True
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
