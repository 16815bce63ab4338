"""Refusals: why a primary does not serve a replica, each kind with its own code."""

from synrepl.wire.error_codes import REFUSALS
from synrepl.wire.native import Refusal

__all__ = ["REFUSALS", "refusal"]


def refusal(code: str, message: str, *, moved_to: str = "", epoch: int = 0, serial: int = 0) -> Refusal:
    """Make a refusal of this kind, with this message."""
    return Refusal(
        code=code,
        message=message,
        retryable=bool(REFUSALS[code].retryable),
        moved_to=moved_to,
        epoch=epoch,
        serial=serial,
    )
