"""The routes of the room of replicas."""

from functools import partial
from typing import Final

from synrepl.http_api.route import ConnectionId, Example, Parameter, Route, WholeNumber
from synrepl.http_api.routes import KIB, OCTETS, refused_example
from synrepl.replicas import shapes
from synrepl.replicas.error_codes import ERROR_CODES
from synrepl.wire.error_codes import ERROR_CODES as OF_CORE
from synrepl.wire.scope import ALL_STREAMS, SEEN_STREAMS

_refused = partial(refused_example, codes=OF_CORE | ERROR_CODES)

CONNECTION: Final = "Synrepl-Connection"
OFFSET: Final = "Synrepl-Offset"

MAX_NEWER: Final = 20
REPLICATION: Final = Route(
    "replica.about",
    "GET",
    "/v1/replication",
    "Read this log's history, epochs, oldest position and head.",
    query=(
        Parameter("after", WholeNumber(), f"name the first facts after this serial too, at most {MAX_NEWER}"),
    ),
    stream=SEEN_STREAMS,
)
NATIVE: Final = Route(
    "native.connect",
    "POST",
    "/v1/native",
    "Open a native connection of a replica: the answer carries the bytes to it, and has no end;"
    f" its header {CONNECTION} is the id of the connection.",
    content_type=OCTETS,
    right="replicate",
    errors=("out_of_descriptors",),
    max_body=KIB,
)
NATIVE_BYTES: Final = Route(
    "native.receive",
    "POST",
    "/v1/native/bytes",
    "Take bytes that a replica sends on its native connection; the answer comes when they are handled.",
    headers=(
        Parameter(CONNECTION, ConnectionId(), "the id of the connection"),
        Parameter(OFFSET, WholeNumber(0), "the bytes that were sent on the connection before these"),
    ),
    right="replicate",
    errors=("no_connection", "bad_offset", "too_large", "garbled"),
    max_body=64 * KIB,
    body_type=OCTETS,
    answer={"received": int},
)
LEASES: Final = Route(
    "admin.list_leases",
    "GET",
    "/v1/leases",
    "List the leases, those that retain most of the log first.",
    stream=SEEN_STREAMS,
    examples=(Example("/v1/leases", {"leases": []}),),
    answer={"leases": [shapes.LEASE]},
)
ADD_LEASE: Final = Route(
    "admin.add_lease",
    "POST",
    "/v1/leases",
    "Retain facts from now on for a replica that will join later;"
    " a dropped replica can be admitted again this way.",
    right="administer",
    errors=("known", "too_many"),
    max_body=64 * KIB,
    examples=(
        Example("/v1/leases", {"uuid": ..., "name": "lisbon", "serial": 3}, {"name": "lisbon"}),
        _refused("/v1/leases", "bad_request", {"name": ""}, message="a lease needs a name"),
    ),
    answer={"uuid": str, "name": str, "serial": int},
)
DROP_LEASE: Final = Route(
    "admin.drop_lease",
    "DELETE",
    "/v1/leases/{name}",
    "End a lease, by the name or the uuid of its reader; a replica is disconnected and refused.",
    right="administer",
    errors=("unknown_lease",),
    examples=(_refused("/v1/leases/oslo", "unknown_lease"),),
    answer={"uuid": str, "name": str},
)
PROMOTE: Final = Route(
    "admin.promote",
    "POST",
    "/v1/promote",
    "Make this replica the primary; with `force`, without asking the old one, and with `lose_acknowledged`,"
    " without asking replicas either. `believe` lists the writers whose promises count, after"
    " `promises_unproven`.",
    right="administer",
    errors=(
        *("not_a_replica", "promoting", "moved", "filtered", "not_whole", "upstream_away"),
        *("behind", "handover_refused", "fenced", "files_missing", "others_ahead", "replicas_silent"),
        "promises_unproven",
    ),
    max_body=64 * KIB,
    examples=(
        _refused(
            "/v1/promote",
            "not_a_replica",
            {"force": False},
            message="this daemon is primary; only a replica can be promoted",
        ),
    ),
    answer={"role": str, "epoch": int, "serial": int},
)
RESYNC: Final = Route(
    "admin.resync",
    "POST",
    "/v1/resync",
    "Let a replica that has stopped, or a fenced daemon, join again; facts that only it has go to a file.",
    right="administer",
    errors=("not_stopped", "primary_unknown"),
    examples=(_refused("/v1/resync", "not_stopped", {}, message=ERROR_CODES["not_stopped"].means),),
    answer={"role": str},
)
HANDOVER: Final = Route(
    "admin.hand_over",
    "POST",
    "/v1/handover",
    "Hand over to another daemon, which is being promoted: a request between daemons.",
    right="administer",
    stream=ALL_STREAMS,
    errors=(
        *("not_primary", "handing_over", "handed_over_lately"),
        *("unknown_replica", "other_history", "not_verified"),
    ),
    max_body=64 * KIB,
)
CLAIM: Final = Route(
    "admin.claim",
    "POST",
    "/v1/claim",
    "Accept that another daemon became primary in a later epoch: a request between daemons.",
    right="administer",
    stream=ALL_STREAMS,
    errors=("not_whole", "other_history", "epoch_too_far", "not_verified", "superseded"),
    max_body=64 * KIB,
)
KEYS: Final = Route(
    "key.list_all",
    "GET",
    "/v1/keys",
    "List the issued keys, revoked ones too; their secrets are kept nowhere.",
    right="administer",
    examples=(Example("/v1/keys", {"keys": [], "lost": []}),),
    answer={"keys": [shapes.KEY], "lost": [str]},
)
ADD_KEY: Final = Route(
    "key.add",
    "POST",
    "/v1/keys",
    "Make a key, which all replicas accept too. Its secret is in the answer, and is shown this once.",
    right="administer",
    errors=("key_refused", "storage_error", "fenced", "starting", "handing_over", "stopped"),
    max_body=64 * KIB,
    examples=(
        _refused("/v1/keys", "key_refused", {"name": "laptop", "rights": ["read"]}),
        _refused("/v1/keys", "bad_request", {"name": "laptop", "rights": []}),
    ),
    answer={"key": shapes.KEY, "secret": str},
)
REVOKE_KEY: Final = Route(
    "key.revoke",
    "DELETE",
    "/v1/keys/{name}",
    "Revoke an issued key, here and at all replicas; peers that use it are disconnected.",
    right="administer",
    errors=("unknown_key", "storage_error", "fenced", "starting", "handing_over", "stopped"),
    examples=(_refused("/v1/keys/laptop", "unknown_key"),),
    answer=shapes.KEY,
)
ROUTES: Final = tuple(value for value in globals().values() if isinstance(value, Route))
