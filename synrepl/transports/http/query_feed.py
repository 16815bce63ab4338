"""The feed of a changelog query."""

from synrepl.replication.feed import EphemeralMode, Feed, Stop
from synrepl.replication.ring import Ring
from synrepl.storage import Log
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.fork_check import trimmed_error

__all__ = ["query_feed", "stop_error"]


def query_feed(log: Log, query: ChangelogQuery, ring: Ring | None = None) -> Feed:
    """Make the feed of this query. Without a `ring` it reads every fact from the log."""
    return Feed(
        log,
        ring,
        after=query.since,
        epoch=query.epoch,
        filter=query.filter,
        upto=query.upto,
        limit=query.limit,
        epochs=query.epoch_starts,
        receipts=query.receipts,
        ephemeral=EphemeralMode.HELD if query.ephemeral else EphemeralMode.NONE,
        compacted=query.compacted,
        whole_groups=False,
    )


def stop_error(log: Log, feed: Feed, stop: Stop) -> ApiError:
    """Make the error for a reader that would miss facts, or mix two histories."""
    if stop is Stop.TRIMMED:
        return trimmed_error(log, feed.serial)
    why = "the log was replaced by a snapshot meanwhile: send the request again"
    return ApiError("replaced", why)
