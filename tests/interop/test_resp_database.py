"""A homeserver whose Redis is our daemon, compared with the tables of its database.

`test_resp.py` compares the log with what the processes say over HTTP. The tables do not depend on what a
process remembers. Rows that were superseded or purged are in the log and no longer in a table, so only
`caches`, whose table keeps every row, is compared in both directions.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import psycopg

from tests.interop import test_resp
from tests.interop.homeserver import WORKER
from tests.interop.test_resp import RETURN_SECONDS, Site, driving, positions
from tests.processes.loading import report, size

pytestmark = test_resp.pytestmark
site = test_resp.site

KILLS: Final = size(3, 20)
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
    "to_device": "SELECT instance_name, stream_id FROM device_inbox",
}
"""The writer and the token of each row of a stream."""

NEVER_DELETED: Final = frozenset({"caches"})

Tokens = set[tuple[str, str | None, int]]
"""Stream, writer and token of facts. Some rows of `account_data` name no writer."""


def stored_positions(site: Site) -> dict[str, int]:
    """The last token of each stream that a writer has committed, as the database has it."""
    with psycopg.connect(site.homeserver.database) as database:
        found = database.execute("SELECT stream_name, max(stream_id) FROM stream_positions GROUP BY 1")
        return dict(found)


def stored_tokens(site: Site, stream: str) -> Tokens:
    """The tokens of a stream in its tables."""
    with psycopg.connect(site.homeserver.database) as database:
        return {(stream, writer, token) for writer, token in database.execute(TABLES[stream])}


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


def seconds_behind(site: Site, began: float) -> float:
    """Return how long after `began` every process had what is in the database now."""
    stored = stored_positions(site)
    while left := behind(site, stored):
        assert time.monotonic() - began < RETURN_SECONDS, left
        time.sleep(STEP_SECONDS)
    return time.monotonic() - began


def wait_for_writes(site: Site, stored: dict[str, int]) -> None:
    """Return once a writer has committed something after these positions."""
    wait_until(lambda: stored_positions(site) != stored, "a commit")


def log_differences(site: Site, since: dict[str, int]) -> list[str]:
    """What the log has twice, lacks of the tables, or has and no table has; of later tokens than these."""
    held = Counter((fact.stream, fact.writer, fact.token) for fact in site.daemon.changelog() if fact.rows)
    found = [f"{count} times in the log: {fact}" for fact, count in held.items() if count > 1]
    for stream in TABLES:
        start = since[stream]
        stored = {fact for fact in stored_tokens(site, stream) if fact[2] > start}
        logged = {fact for fact in held if fact[0] == stream and fact[2] > start}
        tokens = {token for _, _, token in logged}
        found += [
            f"missing in the log: {fact}"
            for fact in stored - logged
            if fact[1] is not None or fact[2] not in tokens
        ]
        if stream in NEVER_DELETED:
            found += [f"not in the table: {fact}" for fact in logged - stored]
    return found


def assert_log_is_complete(site: Site, since: dict[str, int]) -> None:
    """At rest the processes are where the database is, and the log has what is in its tables, once."""
    site.recorder.wait_until_quiet(4.0)
    stored = stored_positions(site)
    wait_until(lambda: behind(site, stored) == [], "every process at the positions of the database")
    until = time.monotonic() + SETTLE_SECONDS
    while found := log_differences(site, since):
        assert time.monotonic() < until, f"{len(found)} differences:\n" + "\n".join(found[:20])
        time.sleep(STEP_SECONDS)
    counts = {stream: len([one for one in stored_tokens(site, stream) if one[2] > 0]) for stream in TABLES}
    report(f"tokens in the tables: {counts}")


def test_the_log_has_what_is_in_the_tables(site: Site) -> None:
    """Every row that a writer committed is in the log under its writer and token; no token is there twice."""
    # Nobody tells what the main process wrote before it subscribed; the log begins with its POSITION.
    since = stored_last(site)

    site.drive(4)

    assert_log_is_complete(site, since)


def test_every_process_is_current_after_each_return_of_the_daemon(site: Site) -> None:
    """Processes that wrote while the daemon was gone have all of each other's rows in ten seconds."""
    since, times = stored_last(site), []
    with driving(site) as rounds:
        for _ in range(KILLS):
            stored = stored_positions(site)
            site.daemon.kill()
            wait_for_writes(site, stored)
            site.daemon.start()
            times.append(seconds_behind(site, time.monotonic()))
            rounds.wait_for_rounds(1)
    report(f"{KILLS} kills of the daemon: all processes current after at most {max(times):.1f} s; {times}")

    assert_log_is_complete(site, since)


def test_every_process_is_current_after_a_worker_returned(site: Site) -> None:
    """A worker that was killed under traffic has what the others wrote meanwhile, and they have its rows."""
    since = stored_last(site)
    with driving(site) as rounds:
        process = site.homeserver.processes[WORKER]
        process.kill()
        site.homeserver._start(WORKER)
        seconds = seconds_behind(site, time.monotonic())
        rounds.wait_for_rounds(1)
    report(f"{WORKER} killed: all processes current {seconds:.1f} s after its return")

    assert_log_is_complete(site, since)
