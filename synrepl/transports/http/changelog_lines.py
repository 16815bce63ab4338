"""What the changelog says, a line of JSON each: facts, and what stands between them.

A fact is proved by the chain of digests, or by a checksum. Every other line ends with a ``check``: the CRC-32
of its name and of what it says.
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
    "inner",
    "receipt_line",
    "turn_line",
    "written",
]

NDJSON: Final = b"application/x-ndjson"


def checked_line(fact: Fact) -> bytes:
    """A fact with what proves it by itself, for whoever does not see the facts before it."""
    return encode_fact(fact)[:-2] + b',"checksum":"%b"}\n' % checksum(fact).encode()


def ephemeral_line(fact: Fact) -> bytes:
    """A fact that nobody keeps."""
    return _line("ephemeral", encode_fact(fact)[:-1])


def held_line(facts: Iterable[Fact]) -> bytes:
    """All facts that are held although nobody keeps them, and where their writers are."""
    return _line("held", b"[%b]" % b",".join(encode_fact(fact)[:-1] for fact in facts))


def command_line(text: bytes) -> bytes:
    """A command for all processes, as a worker of the newest release says it."""
    return _line("command", msgspec.json.encode(text.decode(errors="replace")))


def turn_line(epoch_start: EpochStart) -> bytes:
    """Where an epoch begins."""
    return _line("epoch_start", msgspec.json.encode(epoch_start))


def receipt_line(receipt: AppendReceipt) -> bytes:
    """What an append with an idempotency key was answered, as a replica must know it."""
    appended = receipt.appended
    told = {
        "key": receipt.key,
        "request": receipt.request,
        "epoch": appended.epoch,
        "first_serial": appended.first_serial,
        "tokens": appended.tokens,
        "at_ms": receipt.at_ms,
    }
    return _line("receipt", msgspec.json.encode(told))


def heartbeat_line(epoch: int, serial: int, digest: str | None, *, now_ms: int, head: int) -> bytes:
    """All is well, and all that is wanted up to `serial` was sent; the log is at `head`."""
    told = {"epoch": epoch, "serial": serial, "digest": digest, "now_ms": now_ms, "head": head}
    return _line("heartbeat", msgspec.json.encode(told))


def written(
    facts: Sequence[Fact],
    epoch_starts: Sequence[EpochStart] = (),
    receipts: Sequence[AppendReceipt] = (),
    *,
    checked: bool,
) -> bytes:
    """The lines of a page: the receipts first, so that none of their facts is kept without them; a turn
    behind the fact with its serial, or a lower one.
    """
    fact_line = checked_line if checked else encode_fact
    if not epoch_starts:
        text = b"".join(map(fact_line, facts))
    else:
        parts: list[tuple[int, int, bytes]] = [(fact.serial, 0, fact_line(fact)) for fact in facts]
        parts += [
            (epoch_start.serial, epoch_start.epoch, turn_line(epoch_start)) for epoch_start in epoch_starts
        ]
        text = b"".join(part for _, _, part in sorted(parts))
    return b"".join(map(receipt_line, receipts)) + text if receipts else text


def inner(text: bytes) -> tuple[str, bytes]:
    """What such a line is about, and what it says of it. Raises RemoteProtocolError if it was changed on its
    way here.
    """
    head, _, check = text.rpartition(b',"check":"')
    what, _, told = head.removeprefix(b'{"').partition(b'":')
    if check.rstrip() != _check(what, told) + b'"}':
        raise RemoteProtocolError("a line between the facts was changed on its way here")
    return what.decode("ascii", "replace"), told


def _line(what: str, told: bytes) -> bytes:
    name = what.encode()
    return b'{"%b":%b,"check":"%b"}\n' % (name, told, _check(name, told))


def _check(what: bytes, told: bytes) -> bytes:
    """Enough to find what a bad link has done; no secret goes into it."""
    return b"%08x" % crc32(told, crc32(what))
