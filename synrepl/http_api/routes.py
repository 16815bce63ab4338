"""Every route of the HTTP API, each declared once.

A function in `synrepl/transports/http/` handles it: the one with the decorator `handles(ROUTE)`.
"""

from collections.abc import Mapping
from typing import Any, Final

from synrepl.http_api import shapes
from synrepl.http_api.route import (
    AcksNumber,
    Choice,
    Digest,
    Example,
    Flag,
    InstanceName,
    Misplaced,
    Names,
    OwnerName,
    Parameter,
    ReaderName,
    Route,
    Seconds,
    SynapseToken,
    Text,
    WholeNumber,
    WholeNumbers,
)
from synrepl.wire.error_codes import ERROR_CODES, ErrorCode
from synrepl.wire.scope import ALL_STREAMS, NAMED_STREAMS, SEEN_STREAMS

KIB: Final = 1024
MIB: Final = 1024 * KIB

ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
HTML: Final = "text/html; charset=utf-8"
PROMETHEUS: Final = "text/plain; version=1.0.0; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OCTETS: Final = "application/octet-stream"

MAX_WAIT: Final = 300.0
MAX_COMMAND_LINES: Final = 1_000
READER_HEADER: Final = "Synrepl-Reader"

END_HEADER: Final = "Synrepl-End"
"""Asks for a last line in an answer of lines, which has this header too if it ends with one."""

HEARTBEAT: Final = "heartbeat"

_NUMBERS: Final = Parameter(
    "numbers",
    Choice("text"),
    "for JavaScript: each number that it would change is a string of its digits, such as an integer beyond"
    " 2**53 - 1; digests and checksums are those of the numbers",
)
READ_YOUR_WRITES: Final = (
    Parameter("min_serial", WholeNumber(0), "answer once the log has reached this serial"),
    Parameter("timeout", Seconds(10.0, highest=MAX_WAIT), "how long to wait for `min_serial`"),
)
COPY_ERRORS: Final = (
    *("not_ready", "filtered", "not_here_yet", "too_many_waiting"),
    *("fenced", "stopped", "stopping"),
)
_POSITION: Final = ("other_history", "other_epoch", "ahead_of_log", "trimmed", "fork")
WRITE_ERRORS: Final = (
    *("bad_row", "bad_writer", "too_large", "too_many_writers", "idempotency_key_reused"),
    *("table_backed", "brought_elsewhere", "storage_error", "fenced", "starting", "handing_over", "stopped"),
)
_SELECTION: Final = (
    Parameter("since", WholeNumber(0), "the facts after this serial"),
    Parameter("upto", WholeNumber(), "the last serial"),
    Parameter("limit", WholeNumber(lowest=1), "the maximum number of facts; an atomic batch is not divided"),
    Parameter("streams", Names(), "only facts of these streams"),
    Parameter("writers", Names(are_writers=True), "only facts of these writers"),
    Parameter("epoch", WholeNumber(), "the epoch of the reader's log at `since`"),
    Parameter("digest", Digest(), "the digest of the reader's log at `since`"),
    Parameter("history", Text(), "the history of the reader's log"),
    Parameter("compacted", Flag(), "include what remains of the trimmed part of the log"),
    *READ_YOUR_WRITES,
    Parameter("reader", Misplaced(f"send the reader's name in the header {READER_HEADER}, not in the query")),
)
_READER: Final = (
    Parameter(READER_HEADER, ReaderName(), "the name of the reader, for which facts after `since` are kept"),
)


def refused_example(
    target: str,
    code: str,
    body: Any = None,
    *,
    message: Any = ...,
    codes: Mapping[str, ErrorCode] = ERROR_CODES,
    **more: Any,
) -> Example:
    """An example of a refusal, with the status of its code, which is one of these `codes`."""
    kind = codes[code]
    if kind.retryable is not None:
        more.setdefault("retryable", kind.retryable)
    return Example(target, {"error": code, **more, "message": message}, body, kind.status)


_APPENDED: Final = {"epoch": int, "first_serial": (int, None), "tokens": [int]}
_DECLARED_STREAM: Final = {
    "name": str,
    "key": [str],
    "kind": str,
    "columns": ({...: str}, None),
    "writers": [str],
}

ADA: Final = [["@ada:hs.example"]]
BOB: Final = [["@bob:hs.example"]]

_ACKS: Final = Parameter(
    "acks",
    AcksNumber(),
    "the replicas that must have the facts on disk before the answer; default: the setting `acks`",
)
_TIMEOUT: Final = Parameter(
    "timeout", Seconds(10.0, lowest=0.1, highest=MAX_WAIT), "at a replica, and with `acks`: limits the wait"
)
_FORWARDED: Final = (
    _TIMEOUT,
    _ACKS,
    Parameter("files", Choice("here"), "at a replica: wait for the bytes of the files that the facts name"),
    Parameter("via", Text(), "the daemons that have forwarded this request"),
    Parameter(
        "owner",
        OwnerName(),
        "from a replica: the peer whose request it forwards, to which the idempotency key belongs",
    ),
)
_FORWARDING: Final = ("busy", "not_here_yet", "outcome_unknown", "upstream_away", "upstream_unreachable")
APPEND: Final = Route(
    "append.append",
    "POST",
    "/v1/streams/{stream}/facts",
    "Append facts to a stream; the answer comes when they are on disk (for ephemeral streams: at once).",
    query=_FORWARDED,
    right="write",
    errors=(
        *(*WRITE_ERRORS, "unknown_stream", *_FORWARDING),
        *("upstream_refused", "upstream_failed"),
    ),
    examples=(
        Example(
            "/v1/streams/push_rules/facts",
            {"epoch": 1, "first_serial": 4, "tokens": [4, 5]},
            {"facts": [ADA, BOB], "idempotency_key": "import-1"},
        ),
        refused_example("/v1/streams/push_rules/facts", "bad_row", {"facts": [[["@ada:hs.example", 1, 2]]]}),
        refused_example("/v1/streams/nonsense/facts", "unknown_stream", {"facts": []}),
    ),
    answer=_APPENDED,
)
APPEND_BATCH: Final = Route(
    "append.append_batch",
    "POST",
    "/v1/facts",
    "Append facts to several streams and writers, in order; the answer comes when all of them are on disk.",
    query=_FORWARDED,
    right="write",
    stream=NAMED_STREAMS,
    errors=(
        *(*WRITE_ERRORS, "unknown_stream", "not_primary", "bad_checksum", "no_such_file", *_FORWARDING),
        *("upstream_refused", "upstream_failed"),
    ),
    examples=(
        Example(
            "/v1/facts",
            {"epoch": 1, "appends": [{"epoch": 1, "first_serial": 4, "tokens": [4]}]},
            {"appends": [{"stream": "push_rules", "facts": [ADA]}], "idempotency_key": "replay-7"},
        ),
    ),
    answer={"epoch": int, "appends": [_APPENDED]},
)
APPEND_STREAM: Final = Route(
    "append_stream.serve",
    "POST",
    "/v1/appends",
    "Append line by line: each line of the body is an append, answered by a line once it is on disk.",
    query=(_TIMEOUT, _ACKS),
    content_type=NDJSON,
    right="write",
    stream=NAMED_STREAMS,
    errors=("starting", "fenced", "not_primary", "stopped"),
    body_type=NDJSON,
    streams_body=True,
    examples=(
        Example(
            "/v1/appends",
            [{"epoch": 1, "first_serial": 4, "tokens": [4]}],
            {"stream": "push_rules", "facts": [ADA]},
            is_lines=True,
        ),
    ),
)
ROWS: Final = Route(
    "row.page",
    "GET",
    "/v1/streams/{stream}/rows",
    "Read a page of one writer's rows, in the newest shape.",
    query=(
        Parameter("writer", InstanceName(), "the writer; this daemon's instance by default"),
        Parameter("from", WholeNumber(0), "the rows after this token"),
        Parameter("upto", WholeNumber(), "the last token; the head by default"),
        Parameter(
            "limit", WholeNumber(1_000, lowest=1, highest=10_000), "rows of a page, or all rows of one fact"
        ),
        _NUMBERS,
        *READ_YOUR_WRITES,
    ),
    errors=("unknown_stream", "bad_writer", *COPY_ERRORS),
    examples=(
        Example(
            "/v1/streams/push_rules/rows?limit=1",
            {"updates": [[1, ["@ada:hs.example"]]], "upto": 1, "limited": True},
        ),
        refused_example("/v1/streams/push_rules/rows?limit=0", "bad_request"),
    ),
)
ALLOCATED: Final = Route(
    "row.allocated",
    "GET",
    "/v1/streams/{stream}/allocated",
    "Read the highest token that any reader of the stream can have, and the position of each writer.",
    query=READ_YOUR_WRITES,
    errors=("unknown_stream", *COPY_ERRORS),
    examples=(
        Example(
            "/v1/streams/push_rules/allocated",
            {"stream": "push_rules", "allocated": 3, "positions": {"master": 3}},
        ),
    ),
    answer={"allocated": (int, None), "positions": {...: int}},
)
CATCH_UP: Final = Route(
    "row.updates",
    "GET",
    "/_synapse/replication/get_repl_stream_updates/{stream}/{txn_id}",
    "Read the rows that a follower missed, in the form that Synapse's own processes use.",
    query=(
        Parameter("from_token", SynapseToken(), "the rows after this token"),
        Parameter("upto_token", SynapseToken(), "the last token"),
        Parameter(
            "writer", InstanceName(), "the writer; default: the writer named in `Host`, else this instance"
        ),
        *READ_YOUR_WRITES,
    ),
    errors=("M_UNKNOWN", "M_MISSING_PARAM", "M_INVALID_PARAM"),
    examples=(
        Example(
            "/_synapse/replication/get_repl_stream_updates/push_rules/t1?from_token=2&upto_token=3",
            {"updates": [[3, ["@eve:hs.example"]]], "upto_token": 3, "limited": False},
        ),
        Example(
            "/_synapse/replication/get_repl_stream_updates/push_rules/t1?from_token=2",
            {"errcode": "M_MISSING_PARAM", "error": "Missing required integer query parameter upto_token"},
            status=400,
        ),
    ),
)
CHANGELOG: Final = Route(
    "changelog.read",
    "GET",
    "/v1/changelog",
    "Read the log, one fact a line, or as Arrow; follow it.",
    query=(
        *_SELECTION,
        Parameter("wait", Seconds(highest=MAX_WAIT), "with no fact after `since`: how long to wait for one"),
        Parameter(
            "checksum", Flag(None), "add a checksum to each fact; default: true when there is a filter"
        ),
        Parameter("epoch_starts", Flag(), "epoch starts, as separate lines"),
        _NUMBERS,
        Parameter(
            "receipts",
            Flag(),
            "receipts of appends with an idempotency key, as separate lines; requires the right `replicate`",
            right="replicate",
        ),
        Parameter("follow", Flag(), "keep the answer open, and write facts as they are committed"),
        Parameter(
            "heartbeat", Seconds(5.0, lowest=1.0, highest=60.0), "with `follow`: seconds between heartbeats"
        ),
        Parameter("ephemeral", Flag(), "with `follow`: ephemeral facts, as separate lines"),
        Parameter(
            "commands",
            InstanceName("commands must be the origin of the reader: one printable word", "bad_request"),
            "with `follow`: commands to all processes, except those that this origin forwarded; requires"
            " the right `replicate`",
            right="replicate",
        ),
    ),
    stream=NAMED_STREAMS,
    headers=(
        *_READER,
        Parameter(END_HEADER, Choice(HEARTBEAT), "without `follow`: end lines with a heartbeat"),
    ),
    content_type=NDJSON,
    other_types=(ARROW,),
    errors=(
        "unknown_stream",
        "bad_writer",
        *COPY_ERRORS,
        *_POSITION,
        "not_acceptable",
        "too_many",
        "replaced",
    ),
    examples=(
        Example(
            "/v1/changelog?since=2",
            [
                {
                    "serial": 3,
                    "epoch": 1,
                    "stream": "push_rules",
                    "writer": "master",
                    "prev_token": 2,
                    "token": 3,
                    "rows": [["@eve:hs.example"]],
                    "committed_at_ms": ...,
                    "digest": ...,
                }
            ],
            is_lines=True,
        ),
        refused_example("/v1/changelog?since=9", "ahead_of_log", serial=3, epoch=1),
    ),
)
EXTENT: Final = Route(
    "changelog.extent",
    "GET",
    "/v1/extent",
    "Measure a part of the changelog, without its facts: for planning.",
    query=_SELECTION,
    stream=NAMED_STREAMS,
    headers=_READER,
    errors=("unknown_stream", "bad_writer", *COPY_ERRORS, *_POSITION, "too_many", "replaced"),
    examples=(
        Example(
            "/v1/extent?since=1",
            {
                "since": 1,
                "serial": 3,
                "epoch": 1,
                "digest": ...,
                "history": ...,
                "facts": 2,
                "bytes": 42,
                "clock": {"push_rules": {"master": 3}},
                "committed_at_ms": ...,
                "trimmed_upto": 0,
                "head": 3,
            },
        ),
    ),
    answer=shapes.EXTENT,
)
DIGESTS: Final = Route(
    "changelog.digests",
    "GET",
    "/v1/digests",
    "Read the digests at some serials (null where the log has none), and the log's position.",
    query=(Parameter("serials", WholeNumbers(most=1_000), "the serials"),),
    examples=(
        Example(
            "/v1/digests?serials=3,7",
            {"epoch": 1, "serial": 3, "history": ..., "digests": {"3": ..., "7": None}},
        ),
        refused_example("/v1/digests", "bad_request"),
    ),
    answer={"epoch": int, "serial": int, "history": str, "digests": {...: (str, None)}},
)
COMMANDS: Final = Route(
    "command.read",
    "GET",
    "/v1/commands",
    "Read followers' commands for the homeserver, as lines of JSON.",
    query=(
        Parameter("since", WholeNumber(), "the commands after this number; by default all that are kept"),
        Parameter(
            "wait", Seconds(highest=MAX_WAIT), "with no command after `since`: how long to wait for one"
        ),
        Parameter(
            "limit",
            WholeNumber(MAX_COMMAND_LINES, lowest=1, highest=MAX_COMMAND_LINES),
            "commands per answer",
        ),
        Parameter("life", InstanceName(), "the run of the daemon that `since` belongs to"),
    ),
    content_type=NDJSON,
    right="administer",
    stream=SEEN_STREAMS,
    errors=("too_many_waiting", "bad_writer"),
    examples=(
        Example("/v1/commands", [{"feed": {"life": ..., "trimmed_upto": 0, "head": 0}}], is_lines=True),
    ),
)
ACKNOWLEDGE_COMMANDS: Final = Route(
    "command.acknowledge",
    "POST",
    "/v1/commands/ack",
    "Acknowledge commands up to a number, so that they are not offered again.",
    right="administer",
    stream=ALL_STREAMS,
    errors=("bad_ack",),
    max_body=4 * KIB,
    examples=(
        refused_example("/v1/commands/ack", "bad_ack", {"life": "another", "number": 1}, retryable=False),
    ),
)
SYNCING: Final = Route(
    "command.syncing",
    "GET",
    "/v1/syncing",
    "List the users who are syncing, at workers of this daemon and of its replicas.",
    stream="presence",
    examples=(Example("/v1/syncing", {"users": []}),),
)
DECLARED: Final = Route(
    "stream.list_all",
    "GET",
    "/v1/streams",
    "List the streams of one's own: those that were declared.",
    stream=SEEN_STREAMS,
    examples=(Example("/v1/streams", {"streams": []}),),
    answer={"streams": [_DECLARED_STREAM]},
)
DECLARE: Final = Route(
    "stream.create",
    "POST",
    "/v1/streams",
    "Declare a stream of one's own. An equal declaration changes nothing; another one is refused.",
    right="administer",
    stream=NAMED_STREAMS,
    errors=("declared_otherwise", "storage_error", "fenced", "starting", "handing_over", "stopped"),
    max_body=64 * KIB,
    examples=(
        Example(
            "/v1/streams",
            {
                "stream": {
                    "name": "packages",
                    "key": ["name"],
                    "kind": "kept",
                    "columns": {"name": "str", "version": "str"},
                    "writers": [],
                },
                "created": True,
            },
            {"name": "packages", "key": "name", "columns": {"name": "str", "version": "str"}},
        ),
        refused_example("/v1/streams", "bad_request", {"name": "events"}),
    ),
    answer={"stream": _DECLARED_STREAM, "created": bool},
)
REFUSED: Final = Route(
    "refused.list_all",
    "GET",
    "/v1/refused",
    "List the facts that could not be read, as they were sent, in the order in which they came.",
    query=(
        Parameter("since", WholeNumber(0), "only those that the log has after this serial"),
        Parameter("streams", Names(), "only facts of these streams"),
        Parameter("limit", WholeNumber(100, lowest=1, highest=1_000), "the maximum number of facts"),
    ),
    stream=SEEN_STREAMS,
    errors=("storage_error", *COPY_ERRORS),
    examples=(Example("/v1/refused", {"facts": [], "more": 0}),),
    answer={"facts": [shapes.REFUSED], "more": int},
)
_NAMED_FACTS: Final = {"facts": [{"stream": str, "writer": str, "token": int}]}
REPLAY_REFUSED: Final = Route(
    "refused.replay",
    "POST",
    "/v1/refused/replay",
    "Read refused facts again, and store those that can be read, each under its own writer and token.",
    right="administer",
    stream=NAMED_STREAMS,
    errors=("storage_error", "fenced", "starting", "handing_over", "stopped"),
    max_body=256 * KIB,
    examples=(
        Example(
            "/v1/refused/replay",
            {
                "facts": [
                    {
                        "stream": "events",
                        "writer": "master",
                        "token": 7,
                        "outcome": "absent",
                        "why": "there is no such refused fact",
                    }
                ]
            },
            {"facts": [{"stream": "events", "writer": "master", "token": 7}]},
        ),
    ),
    answer={"facts": [{"stream": str, "writer": str, "token": int, "outcome": str, "why": str}]},
)
REMOVE_REFUSED: Final = Route(
    "refused.remove",
    "POST",
    "/v1/refused/remove",
    "Remove refused facts, here and at all replicas; the answer has those that there were.",
    right="administer",
    stream=NAMED_STREAMS,
    errors=("storage_error", "fenced", "starting", "handing_over", "stopped"),
    max_body=256 * KIB,
    examples=(
        Example(
            "/v1/refused/remove",
            {"facts": []},
            {"facts": [{"stream": "events", "writer": "master", "token": 7}]},
        ),
    ),
    answer=_NAMED_FACTS,
)
STATUS: Final = Route(
    "status.status",
    "GET",
    "/v1/status",
    "Read the status of the daemon.",
    stream=SEEN_STREAMS,
    answer=shapes.STATUS,
)
RECENT: Final = Route(
    "status.recent",
    "GET",
    "/v1/recent",
    "List recent facts, newest first, as far as the daemon has them in memory; perhaps of one stream.",
    query=(
        Parameter("streams", Names(), "only facts of these streams"),
        Parameter("limit", WholeNumber(20, lowest=1, highest=1_000), "the maximum number of facts"),
    ),
    stream=NAMED_STREAMS,
    errors=("unknown_stream", *COPY_ERRORS),
    examples=(
        Example(
            "/v1/recent?streams=push_rules&limit=1",
            {
                "facts": [
                    {
                        "serial": 3,
                        "stream": "push_rules",
                        "writer": "master",
                        "token": 3,
                        "rows": 1,
                        "at": ...,
                    }
                ]
            },
        ),
    ),
)
STATUS_PAGE: Final = Route(
    "status.page",
    "GET",
    "/status",
    "Show the status to people, as a page.",
    content_type=HTML,
    stream=SEEN_STREAMS,
)
ROOT: Final = Route("status.root", "GET", "/", "Redirect to the status page.", content_type=HTML, right=None)
LIVEZ: Final = Route(
    "status.livez",
    "GET",
    "/livez",
    "Answer while the process runs.",
    right=None,
    examples=(Example("/livez", {"alive": True}),),
)
READYZ: Final = Route(
    "status.readyz",
    "GET",
    "/readyz",
    "Answer 200, or 503 with the reasons why this daemon is not ready.",
    right=None,
    examples=(Example("/readyz", {"ready": True}),),
)
METRICS: Final = Route(
    "status.metrics",
    "GET",
    "/metrics",
    "Read the metrics, for Prometheus.",
    content_type=PROMETHEUS,
    other_types=(OPENMETRICS,),
    right=None,
)
OPENAPI: Final = Route(
    "openapi.describe", "GET", "/v1/openapi.json", "Read this description, as OpenAPI 3.1.", right=None
)

ROUTES: Final = tuple(value for value in globals().values() if isinstance(value, Route))
"""The routes of the core."""
