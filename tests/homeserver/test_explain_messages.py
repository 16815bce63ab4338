"""Each form of each message that Synapse logs about replication, behind the headers of people's logs."""

import random
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.homeserver.explanation import details, explain
from synrepl.homeserver.explanation.messages import FormRow, Message, find_message, known_messages
from synrepl.homeserver.explanation.pasted_lines import REDIS, Header, LoggedText

VALUES: Final = {
    "s": ["events", "GET-12", "@ada:hs.test", "5 of 6", "s12_3_0"],
    "r": ["'events'", "<RdataCommand object at 0x7f00>", "b'x'", "['@ada:hs.test']"],
    "i": ["17", "0", "-1"],
    "d": ["17", "4830129"],
    "f": ["1.500000"],
}
"""What stands in the places of a form, by the kind of the place."""

HEADERS: Final = [
    "",
    "2026-11-02 10:00:00,000 - {logger} - 656 - {level} - GET-5-$x - ",
    "2026-11-02 10:00:00,000 - {logger} - 656 - {level} -  - ",
    "{logger} - 656 - {level} - ",
    "Nov 02 15:42:11 host synapse[32346]: {logger}: [GET-1] ",
    "matrix-1  | 2026-11-02 10:00:00,000 - {logger} - 1 - {level} - sentinel - ",
    "2026-11-02T10:00:00.000000001Z stdout F 2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    "2026-11-02T10:00:00.000Z ",
    "2026-11-02 10:00:00,000 {level} {logger} - GET-5 - ",
    "[{level}] {logger}: ",
    "[worker-1] 2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    "{level}:{logger}:",
    # journalctl without hosts (YunoHost-Apps/synapse_ynh#495), with them, in its long and its ISO form
    "Nov 13 23:59:43 python[24444]: 2024-11-13 23:59:43,858 - {logger} - 147 - {level} - POST-370- ",
    "Nov 13 23:59:43 matrix python3[24444]: 2024-11-13 23:59:43,858 - {logger} - 147 - {level} - POST-370- ",
    "Nov 02 15:42:11 synapse[32346]: {logger}: [GET-1] ",
    "Wed 2024-11-13 23:59:43 CET matrix python[2]: 2024-11-13 23:59:43,858 - {logger} - 1 - {level} - x - ",
    "2024-11-13T23:59:43+0100 matrix python[24444]: 2024-11-13 23:59:43,858 - {logger} - 1 - {level} - x - ",
    "<134>1 2024-11-13T23:59:43Z matrix synapse 812 - - 2024-11-13 23:59:43 - {logger} - 1 - {level} - x - ",
    # kubectl logs --prefix, stern, docker service logs, docker compose in colours
    "[pod/synapse-main-0/synapse] 2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    "synapse-main-0 synapse 2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    "matrix_synapse.1.k3x9@node1    | 2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    "\x1b[36msynapse-1  | \x1b[0m2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    # a format that frameworks of containers give
    "2026-11-02 10:00:00,000 {logger}(202) [{level:<8}]: GET-5 ",
    # journalctl in French
    "juin 05 20:05:20 python[82784]: 2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    # grep
    "/var/log/matrix-synapse/homeserver.log:2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    "homeserver.log:1234:2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    "1234:2026-11-02 10:00:00,000 - {logger} - 1 - {level} - main - ",
    # daemontools, runit and s6
    "@400000005ffaf4b51ecf4add 2021-01-10 12:35:28,516 - {logger} - 1 - {level} - main - ",
    "2021-01-10_12:35:28.51667 2021-01-10 12:35:28,516 - {logger} - 1 - {level} - main - ",
    "2021-01-10 12:35:28.516670000  2021-01-10 12:35:28,516 - {logger} - 1 - {level} - main - ",
    # the beginning was cut off
    "GET-12- ",
    "federation_transaction_transmission_loop-5 - ",
    "r_of_a_name - 147 - {level} - POST-370 - ",
]
RAISED: Final = ["", "{error}: ", "synapse.config._base.{error}: ", "    {error}: "]

TOLD_BY_VALUES: Final = frozenset(("request", "proxy_request", "db_pooler_file"))
"""Messages of which only some values tell something."""

REDIS_HEADERS: Final = (
    "1:S 30 May 2023 13:17:01.179 * ",
    "redis-1  | 7:M 02 Nov 2026 10:00:00.000 # ",
    "Nov  2 10:00:00 host redis-server[71]: 71:C 02 Nov 10:00:00.000 - ",
)
"""What Redis, and what ships its log, puts before a line."""

FORMS: Final = [(message, form) for message in known_messages() for form in message.forms]


def fill(pattern: str, seed: int) -> str:
    """Return a text that has this pattern; the same seed makes the same."""
    drawn = random.Random(f"{seed} {pattern}")
    return re.sub(
        r"%(?:\(\w+\))?([sridf])|\{[\w.]+\}", lambda found: drawn.choice(VALUES[found[1] or "s"]), pattern
    )


@cache
def keys_by_text() -> Mapping[str, set[str]]:
    """The keys of the messages that have a text, whoever logs it."""
    found: dict[str, set[str]] = {}
    for message, form in FORMS:
        found.setdefault(form[1], set()).add(message.key)
    return found


def test_there_are_as_many_forms_as_the_releases_have() -> None:
    assert len([form for message, form in FORMS if form[2] is not None]) == 350
    assert len({message.key for message, _ in FORMS}) == len(known_messages())


each_message = pytest.mark.parametrize("message", known_messages(), ids=lambda one: one.key)
"""Each of its forms is tried: a test of its own for each would cost more than what it looks at."""


@each_message
def test_each_form_is_recognized_behind_every_header(message: Message) -> None:
    for number, form in enumerate(message.forms):
        level = {"exception (error)": "ERROR"}.get(form[0], form[0].upper())
        if message.key == "unknown_stream_position":
            texts = ["KeyError: 'quarantined_media'"]
        elif form[0].startswith("raise "):
            error = form[0].removeprefix("raise ")
            texts = [header.format(error=error) + fill(form[1], number) for header in RAISED]
        elif message.logger == REDIS:
            texts = [header + fill(form[1], number) for header in REDIS_HEADERS]
        else:
            logger = message.logger or "synapse.x"
            texts = [header.format(logger=logger, level=level) + fill(form[1], number) for header in HEADERS]

        for text in texts if message.key not in TOLD_BY_VALUES else ():
            # A token in the place of a value is told beside the message.
            found = [
                one for one in explain(text).passages if one.kind != "sync_token" or "s12_3_0" not in text
            ]
            is_of_one = message.logger in (REDIS, "") or message.logger in text
            expected = {message.key} if is_of_one else keys_by_text()[form[1]]
            assert {passage.kind for passage in found} <= expected, text
            assert len(found) == 1, text


@each_message
def test_the_releases_of_each_form_are_told(message: Message) -> None:
    """Its own are among them; with its level, no others if no other form of that level reads so."""
    for form in message.forms:
        level = {"exception (error)": "ERROR"}.get(form[0], form[0].upper())
        header = Header(logger="" if form[0].startswith("raise ") else message.logger, level=level)
        match = find_message(LoggedText(fill(form[1], 3), header, "KeyError" if form[1] == "%r" else ""))

        assert match is not None, form
        if form[2] is None:
            assert match.spans == [] or any(one[2] for one in message.forms), form
        elif match.message is message:
            since = tuple(int(part) for part in f"{form[2]}.0.0".split(".")[:3])
            assert any(since in one for one in match.spans), form
            assert (form[3] is None) <= (match.spans[-1].until is None), form


@pytest.mark.parametrize(
    ("message", "form"),
    [
        (one, one.forms[0])
        for one in known_messages()
        if not one.forms[0][0].startswith("raise ") and one.key not in TOLD_BY_VALUES and one.logger != REDIS
    ],
    ids=lambda one: one.key if isinstance(one, Message) else "",
)
def test_a_structured_line_is_recognized(message: Message, form: FormRow) -> None:
    """As Synapse's own JSON formatter writes it."""
    text = fill(form[1], 1).replace("\\", "\\\\").replace('"', '\\"')

    found = explain(
        f'{{"log":"{text}","namespace":"{message.logger}","level":"INFO","time":"2026-11-02T10:00:00Z"}}'
    ).passages
    # A token in the place of a value is told beside the message.
    [passage] = [one for one in found if one.kind != "sync_token" or "s12_3_0" not in text]

    assert (passage.kind, passage.first_time) == (message.key, "2026-11-02T10:00:00Z")


@each_message
def test_a_meaning_is_plain(message: Message) -> None:
    """A sentence, and what to do unless nothing is to be done."""
    assert re.fullmatch(r"[A-Zw].+\.", message.means)
    assert bool(message.do) or message.severity == "normal"
    assert not message.do.endswith(".")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Waiting for repl stream 'events' to reach 5", "waits up to 30 s"),
        ("Waiting for repl stream 'events' to reach 5 (w1)", "waits up to 5 s"),
        ("Waiting for repl stream 'events' to reach 5", "Logged by Synapse 1.14 to 1.75."),
        ("Handling 'POSITION events w1 5 6'", "Logged by Synapse 1.13 and later."),
        (
            "synapse.replication.tcp.handler - 1 - INFO - x - Handling 'POSITION events w1 5 6'",
            "Logged by Synapse 1.13 to 1.58.",
        ),
        (
            (
                "synapse.replication.tcp.client - 1 - ERROR - x - Timed out waiting for repl stream 'events'"
                " to reach 5 (w1); currently at: 3"
            ),
            "Logged by Synapse 1.78 to 1.93.",
        ),
        ("Postgres sequence a is behind table b: 4 < 9", "refuses to start (1.21 to 1.108)"),
        (
            "Postgres sequence a is behind table b: 4 < 9. Updating sequence.",
            "raises it by itself (since 1.109)",
        ),
        ("Got RDATA for unknown stream: sticky_events", "Synapse has the stream sticky_events since 1.148."),
        ("Sending redis SUBSCRIBE for ['hs.test/USER_IP', 'hs.test']", "Logged by Synapse 1.60 and later."),
        ("Sending redis SUBSCRIBE for ['hs.test']", "Logged by Synapse 1.60 and later."),
        (
            "Can't send an 'invalidate all' for current state cache",
            "1.9 to 1.13, and Synapse 1.19 and later.",
        ),
        ("[TXN EROLL] {a} b", "Logged by Synapse 0.21 and later."),
        ("Using direct TCP replication for workers is no longer supported", "Or: Synapse refuses to start:"),
        ("Sending redis SUBSCRIBE for hs.test", "Logged by Synapse 1.13 to 1.59."),
        ("Got RDATA for unknown stream: sticky_events", "Logged by Synapse 1.16 and later."),
        ("Got USER_SYNC for unknown stream: x", "Logged by Synapse 1.18 and later."),
        ("Waiting for repl stream 'events' to reach 5 (w1)", "Logged by Synapse 1.76 to 1.77."),
        ("Got 'x' query from hs.test", "Logged by Synapse 1.29 and later."),
        ("KeyError: 'quarantined_media'", "Synapse has the stream quarantined_media since 1.152."),
        ("Got POSITION for unknown stream: packages", "has no stream packages"),
        ("Caught up with stream 'receipts' to 5123", "This is normal."),
    ],
)
def test_a_release_is_told_where_it_matters(line: str, said: str) -> None:
    [passage] = explain(line).passages

    assert said in " ".join(passage.words)


@pytest.mark.parametrize("stream", ["typing", "presence_federation", "federation"])
def test_no_metric_is_named_that_the_page_does_not_have(stream: str) -> None:
    [passage] = explain(
        f"Timed out waiting for repl stream '{stream}' to reach 12 (w1); currently at: 3"
    ).passages

    assert not any("synapse_storage" in step or "stream_positions" in step for step in passage.advice)
    assert f"--stream {stream}." in passage.advice[0]


OUTAGES: Final = [
    ("redis_failed", "{redis} - 270 - INFO - Connection to redis server hs:6379 failed: Connection refused."),
    ("redis_lost", "{redis} - 306 - INFO - Connection to redis server hs:6380 lost: non-clean fashion."),
    ("redis_lost", "{redis} - 230 - INFO - Lost connection to redis"),
    ("redis_ping", "{redis} - 329 - WARNING - Failed to send ping to a redis connection"),
    ("caught_up", "{tcp}.handler - 738 - INFO - Caught up with stream 'receipts' to 5123"),
    ("send_rows", "{tcp}.resource - 187 - INFO - Streaming: presence_federation -> 5"),
    (
        "send_rows",
        (
            "{tcp}.resource - 256 - INFO - Sending update for events: 14 -> 15 (limited: False,"
            " updates: 1, max"
            " token: 15)"
        ),
    ),
    ("send_position", "{tcp}.resource - 305 - INFO - Sending position for receipts: 1 -> 1"),
    ("tcp_invalid_command", "{tcp}.protocol - 223 - ERROR - [anon-abcde] invalid command USER_SYNC"),
    (
        "command_failed",
        "{tcp}.handler - 276 - ERROR - Failed to handle command <RdataCommand at 0x7f00>",
    ),
    ("unknown_stream_position", "KeyError: 'quarantined_media'"),
    (
        "http_failed",
        (
            "synapse.http.client - 945 - INFO - Error sending request to  POST synapse-replication://encryption1"
            "/_synapse/replication/fed_send_edu/m.direct_to_device/AbCd: ConnectionRefusedError"
            " Connection refused"
        ),
    ),
    (
        "http_retry",
        (
            "synapse.replication.http._base - 318 - WARNING - fed_send_edu request connection"
            " failed; retrying in"
            " 1s: ConnectionRefusedError('Connection refused')"
        ),
    ),
    (
        "txn_retry",
        (
            "synapse.storage.txn - 517 - WARNING - [TXN OPERROR]"
            " {{set_type_stream_id_for_appservice-17c85}} could"
            " not serialize access due to concurrent update 0/5"
        ),
    ),
    (
        "cfg_writer_missing",
        "Instance 'writer9' is configured to write receipts but does not appear in `instance_map` config.",
    ),
    ("cfg_one", "Must only specify one instance to handle `to_device` messages."),
    (
        "cfg_no_main",
        (
            "Missing data for a worker to connect to main process. Please include 'main' in the"
            " `instance_map`"
            " declared in your shared yaml configuration"
        ),
    ),
    (
        "id_twice",
        'psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint "state_groups_pkey"',
    ),
    ("presence_worker", "NotImplementedError: Attempting to check presence on a non-presence worker"),
    (
        "discard_position",
        (
            "2026-11-02 10:00:00,000 - {tcp}.handler - 656 - DEBUG - x - Discarding redundant POSITION"
            " persister1/events 120 124"
        ),
    ),
]
"""Lines that people pasted into reports (matrix-org/synapse 9590, 9869, 9899, 7257, 10060 and others)."""


@pytest.mark.parametrize(("key", "line"), OUTAGES)
def test_a_line_of_a_report_is_explained(key: str, line: str) -> None:
    [passage] = explain(
        line.format(tcp="synapse.replication.tcp", redis="synapse.replication.tcp.redis")
    ).passages

    assert passage.kind == key
    assert passage.advice or passage.severity == "normal"


OTHERS: Final = [
    "Discarding POSITION persister1/events 120 124",
    "POSITION persister1/events 120 124",
    "POSITION persister1/events 120",
    "POSITION events 120 124 126",
    "POSITION 120 events 124",
    "RDATA persister1/events w1 5 []",
    "RDATA events 17 5 []",
    "RDATA received from w1",
    "ERROR something happened",
    "ERROR - main - no such thing",
    "PING of 10.0.0.1 failed",
    "NAME of the worker is wrong",
    "SERVER is going away",
    "REMOTE_SERVER_UP",
    "2026-11-02 10:00:00,000 - synapse.handlers.x - 656 - DEBUG - x - POSITION events w1 120 124",
    "2026-11-02 10:00:00,000 - synapse.handlers.x - 656 - DEBUG - x - Handling 1 -> 2",
    "2026-11-02 10:00:00,000 - synapse.handlers.x - 656 - DEBUG - x - Got 'foo' query",
    "synapse.util.x - 656 - INFO - RDATA events w1 5 []",
    "the position s1_2 is a word, as is m3",
    "GET /_matrix/client/v3/rooms/!a:b/messages?from=x&dir=b HTTP/1.1",
]


@pytest.mark.parametrize("line", OTHERS)
def test_what_only_looks_like_something_is_not_recognized(line: str) -> None:
    assert explain(line).passages == []


@pytest.mark.parametrize(
    ("line", "kind", "said", "not_said"),
    [
        # A worker that receives rows and does nothing with them (matrix-org/synapse#11726).
        (
            "{tcp}.handler - 510 - DEBUG - x - Received rdata device_lists (master) -> 20",
            "rdata_received_handler",
            "before they are applied",
            "were applied",
        ),
        (
            "{tcp}.client - 1 - DEBUG - x - Received rdata events -> 20",
            "rdata_received",
            "before they",
            "were",
        ),
        # The port of TCP is one of HTTP (matrix-org/synapse#4966), and the other way round.
        (
            "{tcp}.protocol - 204 - ERROR - x - [anon-SPIxh] invalid command HTTP/1.1",
            "tcp_invalid_command",
            "An HTTP server answers at the address",
            "same release",
        ),
        (
            "{tcp}.protocol - 204 - ERROR - x - [None-SPIxh] invalid command POST",
            "tcp_invalid_command",
            "A client of HTTP came to the port of replication over TCP",
            "same release",
        ),
        (
            "{tcp}.protocol - 204 - ERROR - x - [anon-SPIxh] invalid command Server:",
            "tcp_invalid_command",
            "This is a line of HTTP",
            "same release",
        ),
        (
            "{tcp}.protocol - 204 - ERROR - x - [None-SPIxh] invalid command USER_SYNC",
            "tcp_invalid_command",
            "a command that this release does not know",
            "HTTP",
        ),
        # The same rows fail again and again (matrix-org/synapse#7308).
        (
            "{tcp}.resource - 169 - INFO - x - Failed to handle stream events",
            "poll_failed",
            "If they fail again",
            "most often the database",
        ),
        (
            (
                "synapse.metrics.background_process_metrics - 215 - ERROR - x - Background process"
                " 'replication_notifier' threw an exception"
            ),
            "background_failed",
            "replication_notifier",
            "database",
        ),
        (
            (
                "synapse.metrics.background_process_metrics - 242 - ERROR - x - Background process 'send-cmd'"
                " threw an exception"
            ),
            "background_failed",
            "send-cmd",
            "database",
        ),
        # A process of a release that the database's schema has left behind (matrix-org/synapse#11252).
        (
            (
                "Expected database schema version 64 but got 65: run the main synapse process to upgrade the"
                " database schema before starting worker processes."
            ),
            "db_old_worker",
            "is newer than the release of this process",
            "older",
        ),
        # And of 1.39 (#10502).
        (
            (
                "UpgradeDatabaseException: Expected database schema version 61"
                " but got 60: run the main synapse process to upgrade the database schema before starting"
                " worker processes."
            ),
            "db_old_worker",
            "Logged by Synapse 1.20 and later.",
            "1.8",
        ),
        # A worker of the time when each kind was a module (#6428).
        (
            "synapse.app.synchrotron - 426 - ERROR - x-551 - Error processing replication",
            "process_failed",
            "could not be applied",
            "Logged by",
        ),
        # A request between processes that fails (element-hq/synapse#17085).
        (
            (
                "event-persister-1      | 2024-05-31 08:37:46,636 - synapse.http.server - 146 - ERROR -"
                " POST-255334 - Failed handle request via 'ReplicationFederationSendEventsRestServlet':"
                " <SynapseRequest at 0x7f77a203d950 method='POST'>"
            ),
            "replication_request_failed",
            "from another process of the homeserver failed here",
            "Logged by",
        ),
        # The port is not set (matrix-org/synapse#8484).
        (
            (
                "synapse.replication.tcp.client - 71 - INFO - - Connecting to replication:"
                " IPv4Address(type='TCP', host='127.0.0.1', port=None)"
            ),
            "tcp_client_connect",
            "worker_replication_port",
            "This is normal.",
        ),
        (
            "Connecting to replication: IPv4Address(TCP, '127.0.0.1', None)",
            "tcp_client_connect",
            "no port",
            "normal",
        ),
        (
            "Connecting to replication: IPv4Address(TCP, '127.0.0.1', 9592)",
            "tcp_client_connect",
            "or has connected",
            "is made",
        ),
        # A stream in memory, from the beginning (#8524).
        (
            (
                "synapse.replication.tcp.handler - 520 - INFO - process-replication-data-1 -"
                " Fetching replication rows for 'typing' between 0 and 16463350"
            ),
            "fetching",
            "in memory only: a process that starts begins at 0",
            "gap",
        ),
        (
            (
                "synapse.http.client - 381 - INFO - process-replication-data-1 - Received response to GET"
                " http://10.103.0.2:8126/_synapse/replication/get_repl_stream_updates/typing/DdMdhASQZL"
                "?from_token=0&upto_token=16463350: 200"
            ),
            "http_answered",
            "This is normal.",
            "error",
        ),
        (
            (
                "synapse.http.client - 979 - INFO - POST-1 - Received response to POST"
                " synapse-replication://worker1/_synapse/replication/send_events/AbC: 502"
            ),
            "http_answered",
            "with an error, 502",
            "normal",
        ),
        # A read receipt at a process that does not write receipts (element-hq/synapse#17243).
        (
            (
                "2024-05-29 15:39:40,077 - synapse.http.server - 146 - ERROR - POST-420 - Failed handle"
                " request via 'ReceiptRestServlet': <XForwardedForRequest at 0x7fe51050f550 method='POST'"
            ),
            "client_write_failed",
            "only processes that write receipts take such requests",
            "Logged by",
        ),
        (
            "Exception: Got /typing request on instance that is not typing writer",
            "not_writer",
            "does not write it",
            "Logged by",
        ),
        # The line of the traceback that tells it.
        ("    assert self._can_write_to_receipts", "not_writer", "does not write it", "Logged by"),
        # Requests to other servers that go by way of a wrong address (matrix-org/synapse#16303).
        (
            (
                "synapse.http.proxyagent - 313 - DEBUG - GET-42- Requesting"
                " matrix-federation://norge.chat/_matrix/media/r0/download/norge.chat/FWVl?allow_remote=false"
                " via <_RandomSampleEndpoints endpoints=[<HostnameEndpoint 192.0.2.1:28311>]>"
            ),
            "federation_proxied",
            "outbound_federation_restricted_to",
            "Logged by",
        ),
        # A stream that has fallen behind is one reason, another release is none (matrix-org/synapse#5262).
        (
            (
                "{tcp}.protocol - 452 - ERROR - - [synapse.app.synchrotron-iFLjN] Failed to handle REPLICATE"
                " command\nTraceback (most recent call last):\n"
                '  File "/usr/lib/synapse/replication/tcp/streams.py", line 200, in get_updates_since\n'
                "Exception: stream events has fallen behind"
            ),
            "replicate_failed",
            "restart the worker",
            "release",
        ),
    ],
)
def test_no_more_is_said_than_the_line_tells(line: str, kind: str, said: str, not_said: str) -> None:
    [passage] = explain(line.format(tcp="synapse.replication.tcp")).passages
    text = " ".join([*passage.words, *passage.advice])

    assert (kind, True, False) == (passage.kind, said in text, not_said in text), text


@pytest.mark.parametrize("header", [one for one in HEADERS if "{logger} - 1" in one or one == ""])
def test_a_message_over_two_lines_with_a_header_each(header: str) -> None:
    """As Twisted logs the box that Synapse ends with (matrix-org/synapse#9979)."""
    before = header.format(logger="twisted", level="ERROR")
    found = explain(
        f"{before} Postgres sequence 'event_auth_chain_id' is inconsistent with associated\n"
        f"{before} table 'event_auth_chains'. This can happen if Synapse has been downgraded and\n"
    )

    [passage] = found.passages
    assert "Synapse refuses to start: the sequence event_auth_chain_id" in passage.words[0], header
    assert "event_auth_chains" in passage.words[0]
    assert found.unrecognized == 0


def test_a_position_in_an_unknown_line_may_be_told_there() -> None:
    """Only the position was read: the rest of the line may name its stream (synapse_ynh#495)."""
    [passage] = explain("Something about receipts: MultiWriterStreamToken(stream: 7, instances: {})").passages

    assert "By itself a position does not tell its stream" in passage.words[-1]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        # A failover after which Synapse stays at the old primary (element-hq/synapse#16490).
        (
            "psycopg2.errors.ReadOnlySqlTransaction: cannot execute nextval() in a read-only transaction",
            "db_read_only",
        ),
        (
            "2026-01-02 03:04:05 CET [77] ERROR:  cannot execute INSERT in a read-only transaction",
            "db_read_only",
        ),
        ("ERROR:  cannot execute nextval() during recovery", "db_read_only"),
        # Two workers with one port (spantaleev/matrix-docker-ansible-deploy#2109), and a low one (#1781).
        (
            "CannotListenError: Couldn't listen on 0.0.0.0:19111: [Errno 98] Address already in use.",
            "port_in_use",
        ),
        (
            "internet.error.CannotListenError: Couldn't listen on any:443: [Errno 13] Permission denied.",
            "port_forbidden",
        ),
        # Warnings without end that are of the accounting alone (matrix-org/synapse#7202).
        (
            (
                "synapse.logging.context - 345 - WARNING - x - Re-starting finished log"
                " context replication-RDATA-events-751607"
            ),
            "context_restarted",
        ),
    ],
)
def test_words_of_the_database_and_of_the_system(line: str, kind: str) -> None:
    assert [kind] == [passage.kind for passage in explain(line).passages]


def test_a_request_of_a_client_that_fails_is_none_of_replication() -> None:
    line = "synapse.http.server - 146 - ERROR - GET-1 - Failed handle request via 'SyncRestServlet': <X>"

    assert ["client_request_failed"] == [passage.kind for passage in explain(line).passages]


def test_lines_of_other_modules_are_neither_messages_nor_of_the_protocol() -> None:
    """Three hundred real ones of 1.66.0 and 1.163.2, at DEBUG; a few have tokens or positions.

    Most tell nothing; those that are known are what their own module logs.
    """
    loggers = {message.key: message.logger for message in known_messages()}
    for line in (Path(__file__).parent / "other_modules.log").read_text().splitlines():
        for kind in {passage.kind for passage in explain(line).passages}:
            assert kind in loggers or kind in ("sync_token", "compared_tokens", "position", "traceback"), line
            assert "replication.tcp" not in loggers.get(kind, ""), line


@given(st.sampled_from(FORMS), st.integers(0, 10_000), st.text(max_size=40))
def test_whatever_follows_a_message_is_no_error(one: tuple[Message, FormRow], seed: int, rest: str) -> None:
    for passage in explain(fill(one[1][1], seed) + rest).passages:
        assert all(sentence.isprintable() and sentence for sentence in (*passage.words, passage.text))


CASES: Final = Path(__file__).with_name("cases")


def test_the_lines_that_people_paste_of_outages_are_all_known() -> None:
    """Of the first release of `explain` that people tried them on, none was."""
    text = (CASES / "log-lines-of-outages.txt").read_text()
    found = explain(text)

    assert 0 == found.unrecognized
    # The last line of a traceback is one with what logged it.
    assert set(range(1, 20)) - {11} == {number for one in found.passages for number in one.lines}
    [joined] = [" ".join(one.words) for one in found.passages if 10 in one.lines]
    assert "Synapse has the stream quarantined_media since 1.152." in joined
    severities = {number: one.severity for one in found.passages for number in one.lines}
    assert {"error": 7, "look": 7, "normal": 4} == Counter(severities.values())
    assert {5, 6, 7, 8} == {number for number, severity in severities.items() if severity == "normal"}


def test_no_metric_is_named_that_no_page_has() -> None:
    """Pages of real processes have no position of typing and presence_federation."""
    found = explain((CASES / "metric-that-is-not-there.txt").read_text())

    assert 2 == len(found.passages)
    assert "stream_current_position" not in str(found)


def test_rows_of_devices_of_1_76_to_1_109_are_read() -> None:
    """They were refused in every dialect."""
    found = explain((CASES / "device-lists-1.76-to-1.109.txt").read_text())

    said = [" ".join(one.words) for one in found.passages]
    assert 2 == sum("The row has the form of Synapse 1.76 to 1.109." in one for one in said)
    assert "does not fit" not in str(said)


def test_one_module_explains_a_message_by_its_values() -> None:
    """The tables of the modules are put together by key: of two with one key, one would never be asked."""
    tables = [part.DETAILS for part in vars(details).values() if hasattr(part, "DETAILS")]
    keys = Counter(key for table in tables for key in table)

    assert len(tables) > 10
    assert [] == [key for key, count in keys.items() if count > 1]
    assert set(details.DETAILS) <= {one.key for one in known_messages()}
