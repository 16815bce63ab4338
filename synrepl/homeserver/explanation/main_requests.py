"""Requests of clients that only the main process takes, whatever its workers take of the same paths.

Read in 1.85, 1.109, 1.133 and 1.163: what is here, no worker of these takes. Later ones may.
"""

import re
from typing import Final

_PATHS: Final = (
    # Of delayed events a worker takes GET, and in 1.163 POST of restart.
    ("POST", r"org\.matrix\.msc4140/delayed_events/[^/]+(?:/(?:cancel|send))?"),
    ("POST", r"rooms/[^/]+/(?:forget|upgrade|report(?:/[^/]+)?)"),
    ("POST", r"users/[^/]+/report"),
    ("POST", r"user/[^/]+/openid/request_token"),
    ("POST", r"logout(?:/all)?"),
    ("POST", r"tokenrefresh"),
    ("POST", r"login/get_token"),
    ("POST", r"account/password(?:/email/requestToken)?"),
    ("POST", r"account/3pid/(?:add|bind|unbind|delete|(?:email|msisdn)/requestToken)"),
    ("POST", r"register/(?:email|msisdn)/requestToken"),
    ("GET|POST", r"pushers(?:/set)?"),
    ("GET|POST", r"auth/[\w.]+/fallback/web"),
    ("GET", r"thirdparty/.+"),
    ("GET|PUT|DELETE", r"directory/list/.+"),
)

_ALL: Final = re.compile(
    "|".join(
        rf"(?:(?:{methods}) /_matrix/client/(?:api/v1|r0|v1|v3|unstable)/{path}/?)"
        for methods, path in _PATHS
    ),
    re.ASCII,
)


def is_of_main(method: str, path: str) -> bool:
    """Whether only the main process takes such a request."""
    return _ALL.fullmatch(f"{method} {path.partition('?')[0]}") is not None
