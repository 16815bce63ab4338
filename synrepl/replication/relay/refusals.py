"""What a primary cannot do for a replica, each case with a code of its own."""

from typing import Final

import msgspec

from synrepl.wire.native import Refusal

__all__ = ["REFUSALS", "RefusalKind", "refusal"]


class RefusalKind(msgspec.Struct, frozen=True):
    """One kind of refusal: whether the same may work later, and what an operator should know."""

    retryable: bool
    means: str


REFUSALS: Final = {
    "trimmed": RefusalKind(False, "what it lacks was trimmed from the log; it joins again by itself"),
    "ahead": RefusalKind(
        False, "it has facts that this log lacks: the primary was restored from an older copy"
    ),
    "other_epoch": RefusalKind(False, "it knows a later epoch: another daemon was promoted"),
    "fork": RefusalKind(False, "its history and this one have parted"),
    "other_history": RefusalKind(False, "it is a copy of another log"),
    "duplicate": RefusalKind(True, "the same replica is connected already, and alive"),
    "unknown": RefusalKind(False, "it was dropped from the list of replicas"),
    "not_ready": RefusalKind(True, "this daemon has no whole copy itself yet"),
    "read_only": RefusalKind(True, "this daemon is fenced: another one is primary now"),
    "no_rights": RefusalKind(
        False, "it could not prove that it has a key, or its key lacks a right or a stream"
    ),
    "filtered": RefusalKind(False, "this daemon has only some streams or writers, and not all that it wants"),
    "bad_ack": RefusalKind(True, "it acknowledged what it was never sent, or went back"),
    "too_many": RefusalKind(True, "as many leases stand as may; each holds back a part of the log"),
    "bad_name": RefusalKind(False, "its uuid, its name or its address is none that a replica may have"),
    "version": RefusalKind(False, "it speaks in a way that is not understood here"),
}
"""By code."""


def refusal(code: str, message: str, *, moved_to: str = "", epoch: int = 0, serial: int = 0) -> Refusal:
    """A refusal of this kind, told in these words."""
    return Refusal(
        code=code,
        message=message,
        retryable=REFUSALS[code].retryable,
        moved_to=moved_to,
        epoch=epoch,
        serial=serial,
    )
