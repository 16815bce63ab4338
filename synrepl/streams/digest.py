"""The running digest: a hash chain that identifies the whole log up to a serial.

The digest of serial 0, the empty log, is 64 zeros. The digest of serial n is the lowercase hex SHA-256 of
this UTF-8 text. Its parts are separated by single spaces. It is unambiguous, as names of streams and writers
hold no spaces and the rows come last::

    <digest of n-1> <serial> <epoch> <stream> <writer> <prev_token> <token> <committed_at_ms> <rows>

Anyone can recompute it. In a shell, with the fields of one fact::

    printf '%s' "$digest $serial $epoch $stream $writer $prev_token $token $committed_at_ms $rows" | sha256sum

In Spark: ``sha2(concat_ws(' ', previous, serial, epoch, stream, writer, prev_token, token, committed_at_ms,
rows), 256)``.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from synrepl.streams.facts import Fact

EMPTY: Final = "0" * 64
"""The digest of the empty log."""


def chain(
    previous: str,
    *,
    serial: int,
    epoch: int,
    stream: str,
    writer: str,
    prev_token: int,
    token: int,
    committed_at_ms: int,
    rows: bytes,
) -> str:
    """Return the digest of the log after this fact, which follows the digest `previous`."""
    head = f"{previous} {serial} {epoch} {stream} {writer} {prev_token} {token} {committed_at_ms} "
    return sha256(head.encode() + rows).hexdigest()


def checksum(fact: Fact) -> str:
    """Return the checksum of one fact, for use without the facts before it.

    It is the SHA-256, in hex, of the text of the digest without the previous digest.
    """
    head = (
        f"{fact.serial} {fact.epoch} {fact.stream} {fact.writer} {fact.prev_token} {fact.token}"
        f" {fact.committed_at_ms} "
    )
    return sha256(head.encode() + fact.rows).hexdigest()


def verify(facts: Iterable[Fact], previous: str) -> int | None:
    """Return the serial of the first fact that breaks the chain; None if the chain is intact.

    `previous` is the digest before the first fact. A missing fact breaks the chain as a changed one does.
    """
    for fact in facts:
        # `chain`, inlined: this runs for every fact of a copy, and a call costs half as much again.
        head = (
            f"{previous} {fact.serial} {fact.epoch} {fact.stream} {fact.writer} {fact.prev_token}"
            f" {fact.token} {fact.committed_at_ms} "
        )
        expected = sha256(head.encode() + fact.rows).hexdigest()
        if fact.digest != expected:
            return fact.serial
        previous = expected
    return None
