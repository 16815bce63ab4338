"""What the tables of a homeserver's database say its processes and the log of the daemon must have.

The tables do not depend on what a process remembers. Rows that were superseded or purged are in the log and
no longer in a table, so only `caches`, whose table keeps every row, is compared in both directions.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import psycopg

from tests.interop.test_resp import RETURN_SECONDS, Site, positions
from tests.processes.loading import report

SETTLE_SECONDS: Final = 30.0
STEP_SECONDS: Final = 0.1

TABLES: Final = {
    "account_data": """
        SELECT instance_name, stream_id FROM account_data
        UNION SELECT instance_name, stream_id FROM room_account_data
        UNION SELECT instance_name, stream_id FROM room_tags_revisions
    """,
    "caches": "SELECT instance_name, stream_id FROM cache_invalidation_stream_by_instance",
    "device_lists": "SELECT instance_name, stream_id FROM device_lists_stream",
    "events": "SELECT instance_name, stream_ordering FROM events WHERE NOT outlier AND stream_ordering > 0",
    "profile_updates": "SELECT instance_name, stream_id FROM profile_updates",
    "push_rules": "SELECT instance_name, stream_id FROM push_rules_stream",
    "quarantined_media": "SELECT instance_name, stream_id FROM quarantined_media_changes",
    "receipts": "SELECT instance_name, stream_id FROM receipts_linearized",
    "sticky_events": "SELECT instance_name, stream_id FROM sticky_events",
    "thread_subscriptions": "SELECT instance_name, stream_id FROM thread_subscriptions",
    "to_device": "SELECT instance_name, stream_id FROM device_inbox",
}
"""The writer and the token of each row of a stream."""

ANY_WRITER: Final = frozenset(TABLES) - {"caches", "events", "receipts"}
"""Another writer may publish a row of these streams first: Synapse does not ask for the rows of one."""

NEVER_DELETED: Final = frozenset({"caches"})

Tokens = set[tuple[str, str | None, int]]
"""Stream, writer and token of facts; no writer where it may be another one."""

NOTHING: Final[Tokens] = set()


def stored_positions(site: Site) -> dict[str, int]:
    """The last token of each stream that a writer has committed, as the database has it."""
    with psycopg.connect(site.homeserver.database) as database:
        found = database.execute("SELECT stream_name, max(stream_id) FROM stream_positions GROUP BY 1")
        return dict(found)


def stored_tokens(site: Site, stream: str) -> Tokens:
    """The tokens of a stream in its tables."""
    with psycopg.connect(site.homeserver.database) as database:
        return {named(stream, writer, token) for writer, token in database.execute(TABLES[stream])}


def named(stream: str, writer: str, token: int) -> tuple[str, str | None, int]:
    """A fact as it is compared."""
    return stream, None if stream in ANY_WRITER else writer, token


def stored_last(site: Site) -> dict[str, int]:
    """The last token of each stream in its tables. `stream_positions` lacks streams that name no writers."""
    return {
        stream: max((token for _, _, token in stored_tokens(site, stream)), default=0) for stream in TABLES
    }


def behind(site: Site, stored: dict[str, int]) -> list[str]:
    """The processes that are not yet at these positions."""
    return [
        f"{name} is at {position:g} of {stored[stream]} in {stream}"
        for stream, by_process in positions(site).items()
        if stream in stored
        for name, position in by_process.items()
        if position < stored[stream]
    ]


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = SETTLE_SECONDS) -> None:
    """Return once this is so, or fail."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(STEP_SECONDS)


def seconds_behind(site: Site, began: float, seconds: float = RETURN_SECONDS) -> float:
    """Return how long after `began` every process had what is in the database now; fails after `seconds`."""
    stored = stored_positions(site)
    while left := behind(site, stored):
        assert time.monotonic() - began < seconds, left
        time.sleep(STEP_SECONDS)
    return time.monotonic() - began


def log_differences(site: Site, since: dict[str, int], *, skipped: Tokens = NOTHING) -> list[str]:
    """What the log has twice, lacks of the tables, or has and no table has; of later tokens than these.

    It may lack `skipped`.
    """
    held = Counter(
        named(fact.stream, fact.writer, fact.token) for fact in site.daemon.changelog() if fact.rows
    )
    found = [f"{count} times in the log: {fact}" for fact, count in held.items() if count > 1]
    for stream in TABLES:
        start = since[stream]
        stored = {fact for fact in stored_tokens(site, stream) if fact[2] > start}
        logged = {fact for fact in held if fact[0] == stream and fact[2] > start}
        found += [f"missing in the log: {fact}" for fact in stored - logged - skipped]
        if stream in NEVER_DELETED:
            found += [f"not in the table: {fact}" for fact in logged - stored]
    return found


def skipped_rows(site: Site) -> Tokens:
    """The rows in the tables that no process published, of one that heard all that was published.

    Synapse skips some, once in a while (test_synapse_skips_rows).
    """
    told = {named(fact.stream, fact.writer, fact.token) for fact in site.recorder.facts()}
    return {row for stream in TABLES for row in stored_tokens(site, stream)} - told


def assert_log_is_complete(site: Site, since: dict[str, int], *, has_heard_all: bool = False) -> None:
    """At rest the processes are where the database is, and the log has what is in its tables, once.

    Of a recorder that `has_heard_all`, what it did not hear was not published: the log may lack that.
    """
    site.recorder.wait_until_quiet(4.0)
    stored = stored_last(site) | stored_positions(site)
    wait_until(lambda: behind(site, stored) == [], "every process at the positions of the database")
    until = time.monotonic() + SETTLE_SECONDS
    skipped = skipped_rows(site) if has_heard_all else NOTHING
    while found := log_differences(site, since, skipped=skipped):
        assert time.monotonic() < until, f"{len(found)} differences:\n" + "\n".join(found[:20])
        time.sleep(STEP_SECONDS)
    counts = {stream: len([one for one in stored_tokens(site, stream) if one[2] > 0]) for stream in TABLES}
    since_then = sorted(map(str, (one for one in skipped if one[2] > since[one[0]])))
    report(f"tokens in the tables: {counts}; skipped by their writers: {since_then}")
