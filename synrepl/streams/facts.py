"""Facts: the rows under one token, as the log keeps them."""

from typing import Final

import msgspec

__all__ = ["NO_ROWS", "Fact"]

NO_ROWS: Final = b"[]"
"""The rows of a fact that only certifies the position of its writer."""


class Fact(msgspec.Struct, frozen=True):
    """The rows under one token; never split.

    `rows` is a JSON array of rows in the newest shape of their stream, in canonical form (compact,
    ASCII-escaped). `serial` is the dense position of the fact in this daemon's log. Facts of ephemeral
    streams are not in the log: their serial is 0, and they have no `digest`. Between `prev_token` and
    `token` this writer wrote nothing else to this stream.

    A fact whose `prev_token` equals its token is late, as happens in unordered streams: its writer had
    already reached that token. It claims nothing about earlier tokens and moves no position.
    """

    serial: int
    epoch: int
    stream: str
    writer: str
    prev_token: int
    token: int
    rows: bytes
    committed_at_ms: int
    digest: str
