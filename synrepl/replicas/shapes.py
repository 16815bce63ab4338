"""Shapes of the JSON of the room of replicas, as far as clients use it (`synrepl.http_api.shapes`)."""

from typing import Final

from synrepl.http_api.shapes import SECONDS

LEASE: Final = {
    "uuid": str,
    "name": str,
    "registered": bool,
    "serial": int,
    "held_bytes": int,
    "used": float,
    "ended": SECONDS,
    "ends_after_seconds": float,
    "reason": str,
}

KEY: Final = {
    "name": str,
    "rights": [str],
    "streams": ([str], None),
    "instances": ([str], None),
    "made": float,
    "revoked": (float, None),
}

STATUS: Final = {
    "upstream": (
        None,
        {
            "address": str,
            "state": str,
            "why": str,
            "serial": int,
            "heard_seconds_ago": SECONDS,
            "refusal": (None, {"code": str, "message": str}),
            "join": (
                None,
                {"done": int, "total": int, "rows_per_second": float, "eta_seconds": SECONDS},
            ),
            "only_here": [str],
        },
    ),
    "replicas": [
        {
            "name": str,
            "state": str,
            "relay": (str, None),
            "serial": int,
            "lag_rows": int,
            "lag_seconds": SECONDS,
            "seen": SECONDS,
            "address": str,
            "why": str,
        }
    ],
    "leases": [LEASE],
    "backups": [{"name": str, "serial": int, "age_seconds": float, "is_connected": bool}],
}
"""Its keys of the status."""
