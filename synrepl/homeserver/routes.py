"""The routes of the homeserver: what is done to the one that a daemon watches."""

from typing import Final

from synrepl.http_api.route import Route
from synrepl.http_api.routes import KIB, refused_example

INVALIDATE: Final = Route(
    "homeserver.invalidate",
    "POST",
    "/v1/invalidate",
    "Invalidate caches of the homeserver that the daemon watches, as `synrepl invalidate` does.",
    right="administer",
    stream="caches",
    errors=("busy", "not_invalidated"),
    max_body=64 * KIB,
    examples=(
        refused_example(
            "/v1/invalidate", "not_found", {"name": "get_user_by_id", "key": ["@ada:hs.example"]}
        ),
    ),
    answer={
        "rows": [{"name": str, "keys": ([str], None)}],
        "drops": {...: [{"name": str, "key": ([str], None)}]},
        "notes": [str],
        "ids": [int],
        "overtaken": [int],
        "processes": [{"name": str, "release": str, "received": (bool, None), "why": str}],
    },
)

ROUTES: Final = (INVALIDATE,)
