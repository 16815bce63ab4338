"""The error codes of replicas and roles."""

from typing import Final

from synrepl.wire.error_codes import ERROR_CODES as OF_CORE
from synrepl.wire.error_codes import ErrorCode

_REPLICAS: Final = {
    "duplicate": ErrorCode(409, "the same replica already has a live connection", retryable=True),
    "unknown": ErrorCode(
        409,
        "an operator dropped the replica from the list of replicas",
        "a replica that acknowledges without a lease subscribes again",
        False,
    ),
    "bad_name": ErrorCode(400, "the replica's uuid, name or address is not a valid one", retryable=False),
    "version": ErrorCode(
        409, "the replica's handshake is not one that this daemon supports", retryable=False
    ),
    "read_only": ErrorCode(503, "this daemon is fenced: another one is primary now", "", True),
    "replica": ErrorCode(503, "this daemon is a replica, and writes nothing itself", "", True, 1),
    "no_connection": ErrorCode(
        404,
        "no native connection of this key has this id, or it has ended",
        "open another one with `POST /v1/native`",
        False,
    ),
    "bad_offset": ErrorCode(
        409,
        "bytes of a native connection are missing before these, others were sent there, or those before are"
        " not handled yet",
        "send one request at a time, or open another connection with `POST /v1/native`",
        False,
    ),
}
"""Why a replica is refused, or its connection."""

_ROLES: Final = {
    "not_a_replica": ErrorCode(409, "only a replica can be promoted", retryable=False),
    "promoting": ErrorCode(409, "a promotion is in progress", retryable=True),
    "moved": ErrorCode(409, "the replica began to follow another daemon meanwhile", retryable=True),
    "not_whole": ErrorCode(409, "this copy was never complete", retryable=True),
    "behind": ErrorCode(409, "this copy did not catch up with the primary in time", retryable=True),
    "others_ahead": ErrorCode(
        409,
        "replicas, listed in `ahead`, have facts that this one lacks, and which may have been acknowledged",
        "promote the one that is furthest ahead, or promote this one with `lose_acknowledged`",
    ),
    "replicas_silent": ErrorCode(
        409,
        "too few replicas answered to know whether this one has all acknowledged facts; `silent` lists them",
        "start them, or promote with `lose_acknowledged`",
        retryable=True,
    ),
    "promises_unproven": ErrorCode(
        409,
        "the log has promises of several writers, listed in `promises`, of which one at most was primary",
        "say whose promises count: `believe`, a list of writers; an empty one ignores all",
        False,
    ),
    "files_missing": ErrorCode(
        409,
        "this copy lacks files, listed in `missing` with names and checksums",
        "promote with `force`",
        False,
    ),
    "handover_refused": ErrorCode(409, "the primary refuses to hand over; the message says why"),
    "handed_over_lately": ErrorCode(
        409,
        "a hand-over ended without a takeover just now, or this one would take longer than 60 seconds",
        retryable=True,
    ),
    "primary_unknown": ErrorCode(409, "the primary's address is unknown", "restart with `--upstream`", False),
    "not_stopped": ErrorCode(409, "nothing to resync: this daemon is neither stopped nor fenced"),
    "epoch_too_far": ErrorCode(
        409,
        "an epoch is not from 1 to 2**53, or is more than one above those known here and not confirmed by a"
        " daemon that is listed",
        "if the named daemon is primary, list it in `--upstream`",
        False,
    ),
    "not_verified": ErrorCode(
        409,
        "the claim came without a key that may administer, and no daemon that is listed confirms it; or a"
        " replica does not confirm a hand-over",
        retryable=True,
    ),
    "superseded": ErrorCode(409, "a later primary is known", retryable=True),
    "unknown_replica": ErrorCode(
        409, "the replica has no lease with an address here, and is not listed", retryable=False
    ),
    "known": ErrorCode(409, "the replica has a lease already"),
    "key_refused": ErrorCode(
        409,
        "no key can be made: a name is bad or taken, there are too many keys, or the daemon has no secret",
        "the message says which; a daemon without `secret_file` and `keys_file` makes no keys",
    ),
    "unknown_key": ErrorCode(404, "there is no valid issued key of this name", "see `GET /v1/keys`"),
    "unknown_lease": ErrorCode(
        404, "no lease, or more than one, has this name", "give a uuid of `GET /v1/leases`"
    ),
}
"""Why a role, a lease or a key is not changed."""

ERROR_CODES: Final = _REPLICAS | _ROLES

HANDSHAKE_REFUSALS: Final = ("version", "bad_name", "no_rights")
"""The codes of a REFUSED in answer to HELLO."""

REFUSALS: Final = {
    code: _REPLICAS.get(code) or OF_CORE[code]
    for code in (
        "trimmed",
        "ahead",
        "other_epoch",
        "fork",
        "other_history",
        "duplicate",
        "unknown",
        "not_ready",
        "read_only",
        "no_rights",
        "filtered",
        "bad_ack",
        "too_many",
        "bad_name",
        "version",
    )
}
"""Why an upstream refuses a replica, or a reader over HTTP."""
