"""FollowerEvent: what happens to a follower besides facts."""

import re
from typing import Final, Literal

import msgspec

__all__ = ["FollowerEvent", "code_of"]


class FollowerEvent(msgspec.Struct, frozen=True):
    """An event of a follower other than a fact. `kind` is one of:

    * ``connected``, ``disconnected`` (`text` is the reason);
    * ``server``: the server's name, in `text`;
    * ``position``: a POSITION was processed; `writer` of `stream` is at `token`;
    * ``restarted``: `writer` restarted `stream`, and its tokens begin again;
    * ``went_back``: the position of `writer` in `stream` fell to `token`: its later facts are lost;
    * ``error``: `text` is the message, `error` the exception, if any.

    `code` is set if no retry can succeed until somebody changes a configuration: ``wrong_server``,
    ``unknown_stream``, ``forbidden``, ``tls`` or ``bad_port``. All other reasons are temporary.
    """

    kind: Literal["connected", "disconnected", "server", "position", "restarted", "went_back", "error"]
    text: str = ""
    stream: str = ""
    writer: str = ""
    token: int = 0
    error: Exception | None = None
    code: str = ""


REFUSALS: Final = {
    "unknown_stream": re.compile(r"unknown stream "),
    "forbidden": re.compile(
        r"lacks the right |this takes the right |the certificate of .* is not in keys_file"
    ),
}
"""The permanent reasons in ERROR lines, which have no code of their own."""


def code_of(error: str) -> str:
    """Return the code of the text of an ERROR line; empty if a retry may succeed."""
    return next((code for code, text in REFUSALS.items() if text.search(error)), "")
