"""Refusals: why a primary does not serve a replica, each kind with its own code."""

from typing import Final

import msgspec

from synrepl.wire.native import Refusal

__all__ = ["REFUSALS", "RefusalKind", "refusal"]


class RefusalKind(msgspec.Struct, frozen=True):
    """One kind of refusal: whether a retry may succeed, and its meaning for operators."""

    retryable: bool
    means: str


REFUSALS: Final = {
    "trimmed": RefusalKind(
        False, "facts that the replica is missing were trimmed from the log; it joins again by itself"
    ),
    "ahead": RefusalKind(
        False, "the replica has facts that this log lacks: the primary was restored from an older copy"
    ),
    "other_epoch": RefusalKind(False, "the replica knows a later epoch: another daemon was promoted"),
    "fork": RefusalKind(False, "the replica's history and this log's have diverged"),
    "other_history": RefusalKind(False, "the replica is a copy of another log"),
    "duplicate": RefusalKind(True, "the same replica already has a live connection"),
    "unknown": RefusalKind(False, "an operator dropped the replica from the list of replicas"),
    "not_ready": RefusalKind(True, "this daemon has no complete copy itself yet"),
    "read_only": RefusalKind(True, "this daemon is fenced: another one is primary now"),
    "no_rights": RefusalKind(
        False, "the replica did not prove that it has a key, or its key lacks a right or a stream"
    ),
    "filtered": RefusalKind(
        False, "this daemon has only some streams or writers, and not all that the replica requests"
    ),
    "bad_ack": RefusalKind(
        True, "the replica acknowledged a serial that it was not sent, or an earlier one than before"
    ),
    "too_many": RefusalKind(
        True, "the maximum number of leases is active; each one retains a part of the log"
    ),
    "bad_name": RefusalKind(False, "the replica's uuid, name or address is not a valid one"),
    "version": RefusalKind(False, "the replica's handshake is not one that this daemon supports"),
}
"""The kinds, by code."""


def refusal(code: str, message: str, *, moved_to: str = "", epoch: int = 0, serial: int = 0) -> Refusal:
    """Make a refusal of this kind, with this message."""
    return Refusal(
        code=code,
        message=message,
        retryable=REFUSALS[code].retryable,
        moved_to=moved_to,
        epoch=epoch,
        serial=serial,
    )
