"""FollowerEvent: what happens to a follower besides facts."""

from typing import Literal

import msgspec

__all__ = ["FollowerEvent"]


class FollowerEvent(msgspec.Struct, frozen=True):
    """An event of a follower other than a fact. `kind` is one of:

    * ``connected``, ``disconnected`` (`text` is the reason);
    * ``server``: the server's name, in `text`;
    * ``position``: a POSITION was processed; `writer` of `stream` is at `token`;
    * ``restarted``: `writer` restarted `stream`, and its tokens begin again;
    * ``went_back``: the position of `writer` in `stream` fell to `token`: its later facts are lost;
    * ``error``: `text` is the message, `error` the exception, if any.
    """

    kind: Literal["connected", "disconnected", "server", "position", "restarted", "went_back", "error"]
    text: str = ""
    stream: str = ""
    writer: str = ""
    token: int = 0
    error: Exception | None = None
