"""Facts: the rows under one token, as the log keeps them, and their form as lines of JSON (NDJSON).

That form is used in the HTTP changelog, in blocks between daemons and in files.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.wire.position import LogPosition

NO_ROWS: Final = b"[]"
"""The rows of a fact that only certifies the position of its writer."""

LOST: Final = b""
"""Stands for the rows of a fact that could be neither read nor fetched, in an append to the log."""


def says_lost(prev_token: int, token: int, rows: bytes) -> bool:
    """Whether a kept stream's fact with these members says that facts up to its token are lost (`Fact`)."""
    # A writer that has written nothing yet is at token 0, and so is the fact that records that.
    return 0 < prev_token == token and rows == NO_ROWS


class Fact(msgspec.Struct, frozen=True):
    """The rows under one token; never split.

    `rows` is a canonical JSON array (compact, ASCII-escaped) of rows in the newest shape of their stream,
    with the kept fields of older releases. `serial` is the fact's number in this daemon's log: 1, 2, 3 and so
    on; trimmed logs and filtered replicas lack some. Facts of ephemeral streams are not in the log: their
    serial is 0, and their `digest` is empty. Between `prev_token` and `token` this writer wrote nothing else
    to this stream.

    A fact with rows whose `prev_token` equals its token is late, as happens in unordered streams: its writer
    had already reached that token. It claims nothing about earlier tokens and moves no position.

    A fact without rows whose `prev_token` equals its token says that facts of this writer are lost: it wrote
    more after its previous fact, up to this token, and this log could not get it. So the chain of
    `prev_token` has a hole there, and certifies nothing about it (`is_lost`).
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

    @property
    def is_lost(self) -> bool:
        """Whether facts of this writer up to this token are lost. Only kept streams record that."""
        return self.serial != 0 and says_lost(self.prev_token, self.token, self.rows)

    @property
    def position(self) -> LogPosition:
        """The position of a log that ends with this fact."""
        return LogPosition(self.epoch, self.serial, self.digest)


class _Line(Fact, frozen=True):
    rows: msgspec.Raw


_decoder: Final = msgspec.json.Decoder(_Line)


LINE: Final = (
    b'{"serial":%d,"epoch":%d,%b,"prev_token":%d,"token":%d,"rows":%b,"committed_at_ms":%d,"digest":"%b"}'
)
"""A fact as a line of JSON, without its end; what `encode_names` gives stands for its stream and writer."""


@lru_cache(maxsize=1024)
def encode_names(stream: str, writer: str) -> bytes:
    """Encode the stream and the writer of a fact, as members of its line."""
    return b'"stream":%b,"writer":%b' % (msgspec.json.encode(stream), msgspec.json.encode(writer))


def encode_fact(fact: Fact) -> bytes:
    """Encode a fact as one line of JSON, with its line end."""
    return b"%b\n" % (
        LINE
        % (
            fact.serial,
            fact.epoch,
            encode_names(fact.stream, fact.writer),
            fact.prev_token,
            fact.token,
            fact.rows,
            fact.committed_at_ms,
            fact.digest.encode(),
        )
    )


def encode_facts(facts: Iterable[Fact]) -> bytes:
    """Encode facts as lines of JSON."""
    return b"".join(map(encode_fact, facts))


def decode_facts(data: bytes) -> list[Fact]:
    """Decode lines of JSON to facts. Raises RemoteProtocolError if a line is not a fact."""
    try:
        return [
            Fact(
                line.serial,
                line.epoch,
                line.stream,
                line.writer,
                line.prev_token,
                line.token,
                bytes(line.rows),
                line.committed_at_ms,
                line.digest,
            )
            for line in _decoder.decode_lines(data)
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a line is not a fact: {error}") from error


ROW_BYTES = 200
"""The bytes of JSON that limits of pages count as one row: an estimate, which needs no parsing."""


def take_rows(facts: Iterable[Fact], limit: int) -> tuple[list[Fact], bool]:
    """Return facts until their estimated rows reach `limit`, and whether they do.

    A fact counts as one row for each `ROW_BYTES` of its JSON, but at least as one.
    """
    page = []
    for fact in facts:
        page.append(fact)
        limit -= len(fact.rows) // ROW_BYTES or 1
        if limit <= 0:
            return page, True
    return page, False


def take_tokens(facts: Iterable[Fact], limit: int) -> tuple[list[Fact], bool]:
    """Return the first facts, in order of token, as `take_rows` does, and whether there are more.

    Facts that share a token stay together.
    """
    page: list[Fact] = []
    for fact in facts:
        if limit <= 0 and fact.token != page[-1].token:
            return page, True
        page.append(fact)
        limit -= len(fact.rows) // ROW_BYTES or 1
    return page, False
