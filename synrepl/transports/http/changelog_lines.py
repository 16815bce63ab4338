"""Lines of the changelog: facts, and other lines between them, each a JSON object.

The chain of digests, or a checksum, verifies a fact. Every other line ends with a ``check``: the CRC-32 of
its name and content.
"""

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.ports.history import AppendReceipt, EpochStart
from synrepl.streams.digest import checksum
from synrepl.streams.facts import Fact
from synrepl.streams.ndjson import encode_fact

__all__ = [
    "NDJSON",
    "checked_line",
    "command_line",
    "ephemeral_line",
    "heartbeat_line",
    "held_line",
    "decode_line",
    "encode_fact",
    "receipt_line",
    "epoch_start_line",
    "encode_page",
]

NDJSON: Final = b"application/x-ndjson"


def checked_line(fact: Fact) -> bytes:
    """Encode a fact with a checksum, for readers that do not receive the facts before it."""
    return encode_fact(fact)[:-2] + b',"checksum":"%b"}\n' % checksum(fact).encode()


def ephemeral_line(fact: Fact) -> bytes:
    """Encode an ephemeral fact."""
    return _line("ephemeral", encode_fact(fact)[:-1])


def held_line(facts: Iterable[Fact]) -> bytes:
    """Encode the current ephemeral facts."""
    return _line("held", b"[%b]" % b",".join(encode_fact(fact)[:-1] for fact in facts))


def command_line(text: bytes) -> bytes:
    """Encode a command for all processes, in the newest release's syntax."""
    return _line("command", msgspec.json.encode(text.decode(errors="replace")))


def epoch_start_line(epoch_start: EpochStart) -> bytes:
    """Encode the start of an epoch."""
    return _line("epoch_start", msgspec.json.encode(epoch_start))


def receipt_line(receipt: AppendReceipt) -> bytes:
    """Encode the receipt of an append with an idempotency key, which replicas need for deduplication."""
    appended = receipt.appended
    content = {
        "key": receipt.key,
        "request": receipt.request,
        "epoch": appended.epoch,
        "first_serial": appended.first_serial,
        "tokens": appended.tokens,
        "at_ms": receipt.at_ms,
    }
    return _line("receipt", msgspec.json.encode(content))


def heartbeat_line(epoch: int, serial: int, digest: str | None, *, now_ms: int, head: int) -> bytes:
    """Encode a heartbeat: all matching facts up to `serial` were sent; the log is at `head`."""
    content = {"epoch": epoch, "serial": serial, "digest": digest, "now_ms": now_ms, "head": head}
    return _line("heartbeat", msgspec.json.encode(content))


def encode_page(
    facts: Sequence[Fact],
    epoch_starts: Sequence[EpochStart] = (),
    receipts: Sequence[AppendReceipt] = (),
    *,
    checked: bool,
) -> bytes:
    """Encode a page: receipts before their facts, so that no reader stores facts without their receipt; each
    epoch start behind the fact with its serial, or a lower one.
    """
    fact_line = checked_line if checked else encode_fact
    if not epoch_starts:
        text = b"".join(map(fact_line, facts))
    else:
        parts: list[tuple[int, int, bytes]] = [(fact.serial, 0, fact_line(fact)) for fact in facts]
        parts += [
            (epoch_start.serial, epoch_start.epoch, epoch_start_line(epoch_start))
            for epoch_start in epoch_starts
        ]
        text = b"".join(part for _, _, part in sorted(parts))
    return b"".join(map(receipt_line, receipts)) + text if receipts else text


def decode_line(text: bytes) -> tuple[str, bytes]:
    """Return the kind and content of a line that is no fact.

    Raises `RemoteProtocolError` if it is corrupted.
    """
    head, _, check = text.rpartition(b',"check":"')
    kind, _, content = head.removeprefix(b'{"').partition(b'":')
    if check.rstrip() != _check(kind, content) + b'"}':
        raise RemoteProtocolError("corrupted line in the changelog: its check does not match")
    return kind.decode("ascii", "replace"), content


def _line(kind: str, content: bytes) -> bytes:
    name = kind.encode()
    return b'{"%b":%b,"check":"%b"}\n' % (name, content, _check(name, content))


def _check(kind: bytes, content: bytes) -> bytes:
    """Checksum of a line: detects corruption, not tampering."""
    return b"%08x" % crc32(content, crc32(kind))
