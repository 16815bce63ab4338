"""The error codes between daemons and their clients, over HTTP and the native wire.

A code means one thing everywhere. What differs between two uses of a code, as the status of a refused
replica, is given where it is used.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class ErrorCode(NamedTuple):
    """What a code means for programs and for people.

    `status` is the HTTP status. `retryable` tells whether the same request can succeed later; None leaves
    that to the status, and the response does not say it. `retry_after` is the header Retry-After, in seconds.
    `means` is the reason for the refusal; `action` is what the client, or an operator, can do.
    """

    status: int
    means: str
    action: str = ""
    retryable: bool | None = None
    retry_after: int | None = None


RETRYABLE_STATUSES: Final = frozenset({408, 429, 502, 503, 504})
"""Statuses after which the same request can succeed later, unless the response or its code says otherwise."""


_READERS: Final = {
    "trimmed": ErrorCode(
        410,
        "facts that the replica is missing were trimmed from the log; it joins again by itself",
        "a reader that needs only the remaining facts reads with `compacted=true`",
        False,
    ),
    "ahead": ErrorCode(
        409,
        "the replica has facts that this log lacks, as after a restore of the primary from an older copy",
        retryable=False,
    ),
    "other_epoch": ErrorCode(
        409,
        "the replica knows a later epoch: another daemon was promoted",
        "retry: this daemon may learn of the promotion",
        True,
    ),
    "fork": ErrorCode(
        409,
        "the replica's history and this log's have diverged",
        "a reader finds the fork by bisection, with `GET /v1/digests`",
        False,
    ),
    "other_history": ErrorCode(409, "the replica is a copy of another log", retryable=False),
    "not_ready": ErrorCode(503, "this daemon has no complete copy itself yet", "", True, 5),
    "no_rights": ErrorCode(
        403,
        "the replica did not prove that it has a key, or its key lacks a right or a stream",
        "the message names the right or the stream to add in `keys_file`",
        False,
    ),
    "filtered": ErrorCode(
        409,
        "this daemon has only some streams or writers, and not all that were requested or a primary needs",
        "ask the daemon in `moved_to`, or one without a filter",
        False,
    ),
    "bad_ack": ErrorCode(
        409,
        "a serial or command was acknowledged that was not sent, or an earlier serial than before",
        retryable=True,
    ),
    "too_many": ErrorCode(
        429,
        "the maximum number of leases is active; each one retains a part of the log",
        "read without `Synrepl-Reader`, or end leases with `synrepl leases drop NAME`",
        True,
    ),
}
"""Why a reader of the log is refused, or a replica."""

_REQUESTS: Final = {
    "bad_json": ErrorCode(400, "the body is not JSON"),
    "bad_request": ErrorCode(400, "the body or a parameter is invalid", "the message names it"),
    "bad_writer": ErrorCode(400, "the name of a writer is invalid"),
    "bad_row": ErrorCode(
        400, "a row fits no shape of its stream; nothing was stored", "the message names the fact and the row"
    ),
    "bad_checksum": ErrorCode(400, "a checksum is not 64 hexadecimal digits in lower case"),
    "garbled": ErrorCode(
        400,
        "the body does not match its `Content-Digest` (RFC 9530): it was changed in transit, and not stored",
        "send the request again",
        True,
    ),
    "unauthorized": ErrorCode(401, "the secret is missing, wrong or revoked"),
    "foreign_host": ErrorCode(
        403, "without a secret: `Host` is not a name of this daemon", "add the name to `allowed_hosts`"
    ),
    "foreign_origin": ErrorCode(403, "without a secret: a web page of another site made the request"),
    "content_type": ErrorCode(
        415, "a JSON body has another content type, such as that of a form on a web page"
    ),
    "not_found": ErrorCode(404, "no such URL, or this daemon lacks the part that would answer"),
    "method_not_allowed": ErrorCode(405, "the URL has other methods", "`Allow` lists them"),
    "not_acceptable": ErrorCode(
        406, "Arrow was requested, and pyarrow is not installed, or the answer has no columns"
    ),
    "too_large": ErrorCode(
        413, "the body, the file, the staged file or one fact is too large", "the message names the limit"
    ),
    "unsupported_encoding": ErrorCode(
        415, "the body has a Content-Encoding", "send it as it is; the message names the encoding"
    ),
    "unknown_stream": ErrorCode(404, "no stream has this name"),
    "no_such_file": ErrorCode(404, "no fact names this [file](../howto/files.md), or it is not staged"),
}
"""Faults of a request, and URLs, streams and files that this daemon lacks."""

_WRITES: Final = {
    "fenced": ErrorCode(
        409, "this daemon is fenced: another one is primary", "it is promoted only with `force`", False
    ),
    "table_backed": ErrorCode(
        409, "the facts of the stream come from the homeserver's table", "write them there"
    ),
    "brought_elsewhere": ErrorCode(
        409,
        "the facts come from Redis, from a followed server, or from the writers that the stream declares",
        "the message says what to do",
    ),
    "declared_otherwise": ErrorCode(
        409,
        "the stream is declared otherwise already, has the name of another stream, or is one too many",
        "the message says what differs",
        False,
    ),
    "idempotency_key_reused": ErrorCode(409, "the key was used for another request"),
    "too_many_writers": ErrorCode(
        409,
        "the `writer` is a new one, and the stream has 1,000 already",
        "post as one of these, or without a writer",
    ),
    "storage_error": ErrorCode(
        503,
        "facts cannot be made durable at the moment; they may have been stored all the same",
        "retry, with the same `idempotency_key`",
        None,
        1,
    ),
    "disk_full": ErrorCode(507, "the disk is full; the file was not stored"),
    "not_primary": ErrorCode(
        409,
        "a replica accepts `POST /v1/facts` with `atomic` only; only a primary can hand over",
        "ask the primary; post each stream by itself, or the batch as one append",
    ),
    "stopped": ErrorCode(
        503,
        "this replica has [stopped](../howto/replicas.md#when-it-is-refused); nothing was stored",
        "the message names the command that repairs it",
        False,
        1,
    ),
    "stopping": ErrorCode(503, "this daemon is stopping", "retry, or ask another daemon", True, 1),
    "starting": ErrorCode(503, "this daemon has just started", "retry", True, 1),
    "handing_over": ErrorCode(503, "another daemon is about to become primary", "retry", True, 1),
    "upstream_unreachable": ErrorCode(
        503, "no connection to the primary: facts are not stored, a file only here", "retry", None, 1
    ),
    "upstream_away": ErrorCode(
        503,
        "no primary is known or reachable, it takes no facts now, or the daemons forward in a circle",
        "retry; promote with `force` where the primary is lost",
        None,
        1,
    ),
    "upstream_refused": ErrorCode(
        502, "the primary refuses this daemon's secret, or the file", retryable=False
    ),
    "upstream_failed": ErrorCode(502, "the primary failed, or is not a synrepl daemon"),
    "outcome_unknown": ErrorCode(
        504,
        "the facts were sent, and no answer came that says what became of them",
        "repeat the request with the `idempotency_key` of this answer",
        None,
        1,
    ),
}
"""Why facts and files are not stored, or not as requested."""

_WAITS: Final = {
    "not_here_yet": ErrorCode(
        504,
        "the serial was not reached in time; posted facts are stored at the primary, but not here yet",
        "read with `min_serial`; `serial` is that of the last fact, or the requested one; `at` is this log's",
        None,
        1,
    ),
    "too_slow": ErrorCode(
        408,
        "the head of the request was not complete after 30 seconds, or less than 16 KiB of its body came in"
        " as long; the connection is closed",
        "send the request faster",
    ),
    "too_many_waiting": ErrorCode(503, "too many requests wait already", "retry", None, 1),
    "busy": ErrorCode(
        503,
        "too many facts are being forwarded, too many other daemons checked, or caches are being invalidated",
        "retry",
        True,
        1,
    ),
    "replaced": ErrorCode(
        503, "a copy of another log replaced this one during the answer", "repeat the request", True, 1
    ),
    "ahead_of_log": ErrorCode(409, "`since` is ahead of this log", retryable=False),
    "out_of_memory": ErrorCode(503, "the daemon lacks memory for this request", "retry", None, 1),
    "out_of_descriptors": ErrorCode(
        503, "the daemon has no file descriptors left", "raise its limit", None, 1
    ),
    "internal": ErrorCode(500, "a fault of the daemon", "see its log"),
}
"""Why an answer is not available now, and faults of the daemon."""

_SYNAPSE: Final = {
    "M_UNKNOWN": ErrorCode(400, "under `/_synapse`: every other fault"),
    "M_UNRECOGNIZED": ErrorCode(404, "under `/_synapse`: no such URL, or another method (405)"),
    "M_MISSING_PARAM": ErrorCode(400, "under `/_synapse`: a parameter is missing"),
    "M_INVALID_PARAM": ErrorCode(400, "under `/_synapse`: a parameter is invalid"),
}
"""Codes of Synapse, in its form of errors."""

ERROR_CODES: Final = _READERS | _REQUESTS | _WRITES | _WAITS | _SYNAPSE
"""The codes of the core; a room has its own (`synrepl.declarations`)."""


_REFUSALS: Final = frozenset(
    {"starting", "not_ready", "busy", "handing_over", "stopped", "fenced", "read_only", "replica"}
    | {"upstream_unreachable", "upstream_away", "upstream_refused", "out_of_descriptors", "stopping"}
)


def is_refusal(status: int, code: str) -> bool:
    """Whether the answer says for certain that nothing was done.

    Other codes do not, nor does a status of a proxy, which answers 503 if a connection broke off, too.
    """
    return 400 <= status < 500 or code in _REFUSALS


def is_retryable(status: int, code: str, body: Mapping[str, object]) -> bool:
    """Whether the same request can succeed later: the response says it, or else its code, or its status.

    A response with a code of a room says it, if the status does not.
    """
    kind = ERROR_CODES.get(code)
    for known in (body.get("retryable"), None if kind is None else kind.retryable):
        if isinstance(known, bool):
            return known
    return status in RETRYABLE_STATUSES
