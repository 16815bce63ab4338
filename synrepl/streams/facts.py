"""A fact: the rows under one token, as the log keeps them."""

from typing import Final

import msgspec

__all__ = ["NO_ROWS", "Fact"]

NO_ROWS: Final = b"[]"
"""The rows of a fact that certifies how far its writer is, and says nothing else."""


class Fact(msgspec.Struct, frozen=True):
    """The rows under one token; never split.

    `rows` is a JSON array of rows in the newest shape of their stream, in canonical form (compact,
    ASCII-escaped). `serial` is its dense place in this daemon's log, 0 for a fact of an ephemeral stream,
    which has no place there; such a fact has no `digest` either. Between `prev_token` and `token` this
    writer wrote nothing else to this stream.

    A fact whose `prev_token` is its own token came late, as facts of unordered streams do: its writer had
    come to that token, or further, before. It claims nothing about what lies before it, and moves no
    position.
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
