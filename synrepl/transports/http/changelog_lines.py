"""Lines of the changelog: facts, and other lines between them, each a JSON object.

The chain of digests, or a checksum, verifies a stored fact. Every other line, also of ephemeral facts, ends
with a ``check``: the CRC-32 of its name and content.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from zlib import crc32

import msgspec

from synrepl.base.history import AppendReceipt, EpochStart
from synrepl.replication.serving.encoder import LogEncoder
from synrepl.replication.serving.feed import EphemeralStep
from synrepl.replication.serving.text_pages import LineEncoder
from synrepl.streams.digest import checksum
from synrepl.streams.facts import Fact, encode_fact
from synrepl.wire.filter import Filter
from synrepl.wire.js_numbers import numbers_as_text


class HeartbeatLine(msgspec.Struct, frozen=True):
    """All selected facts up to `serial` were sent (`digest` None: unknown); the log is at `head`.

    `now_ms` is the time at this daemon, in Unix milliseconds.
    """

    epoch: int
    serial: int
    digest: str | None
    now_ms: int
    head: int = 0


class MovedLine(msgspec.Struct, frozen=True):
    """The answer ends: this daemon must not be read any more. `code` is an error code.

    `moved_to` is the primary's address, as ``NATIVE HTTP``; empty if it is unknown.
    """

    code: str
    message: str
    moved_to: str = ""


def checked_line(fact: Fact) -> bytes:
    """Encode a fact with a checksum, for readers that do not receive the facts before it."""
    return encode_fact(fact)[:-2] + b',"checksum":"%b"}\n' % checksum(fact).encode()


def ephemeral_line(fact: Fact, as_read: Callable[[bytes], bytes] = bytes) -> bytes:
    """Encode an ephemeral fact; `as_read` changes it for its reader."""
    return _line("ephemeral", as_read(encode_fact(fact)[:-1]))


def held_line(facts: Iterable[Fact], as_read: Callable[[bytes], bytes] = bytes) -> bytes:
    """Encode the current ephemeral facts, as `ephemeral_line` does."""
    return _line("held", as_read(b"[%b]" % b",".join(encode_fact(fact)[:-1] for fact in facts)))


def encode_line(kind: str, content: HeartbeatLine | MovedLine | EpochStart | str) -> bytes:
    """Encode a heartbeat, a farewell, the start of an epoch, or a command in the newest release's syntax."""
    return _line(kind, msgspec.json.encode(content))


def receipt_line(receipt: AppendReceipt) -> bytes:
    """Encode the receipt of an append with an idempotency key, which replicas need for deduplication."""
    key, appended = receipt.key, receipt.appended
    content = {
        "stream": key.stream,
        "key": key.text,
        "owner": key.owner,
        "part": key.part,
        "request": receipt.request,
        "epoch": appended.epoch,
        "first_serial": appended.first_serial,
        "tokens": appended.tokens,
        "at_ms": receipt.at_ms,
    }
    return _line("receipt", msgspec.json.encode(content))


class _ChangelogEncoder(LineEncoder):
    """Encodes the facts that pass a filter."""

    encode_kept: Callable[[Fact], bytes] = staticmethod(encode_fact)

    def __init__(self, facts_filter: Filter, as_read: Callable[[bytes], bytes]) -> None:
        self._filter = facts_filter
        self._as_read = as_read

    def text(self, lines: bytes) -> bytes:
        return self._as_read(lines)

    def lines(self, facts: Iterable[Fact]) -> bytes:
        passes, as_read = self._filter.passes, self._as_read
        return b"".join(
            as_read(self.encode_kept(fact)) if fact.serial else ephemeral_line(fact, as_read)
            for fact in facts
            if passes(fact.stream, fact.writer)
        )

    def receipts(self, receipts: Sequence[AppendReceipt]) -> bytes:
        return b"".join(map(receipt_line, receipts))

    def epoch_start(self, start: EpochStart) -> bytes:
        return encode_line("epoch_start", start)

    def ephemeral(self, step: EphemeralStep) -> bytes:
        return held_line(step.facts, self._as_read)


class _CheckedEncoder(_ChangelogEncoder):
    """Encodes kept facts with a checksum, which the database cannot compute."""

    encode_kept = staticmethod(checked_line)
    page = LogEncoder.page


@lru_cache(maxsize=256)
def line_encoder(facts_filter: Filter, *, checked: bool, numbers: bool) -> LogEncoder:
    """Return the encoder that readers with this filter, this `checked` and this `numbers` share."""
    kind = _CheckedEncoder if checked else _ChangelogEncoder
    return kind(facts_filter, numbers_as_text if numbers else bytes)


def _line(kind: str, content: bytes) -> bytes:
    name = kind.encode()
    return b'{"%b":%b,"check":"%b"}\n' % (name, content, _check(name, content))


def _check(kind: bytes, content: bytes) -> bytes:
    """Checksum of a line: detects corruption, not tampering."""
    return b"%08x" % crc32(content, crc32(kind))
