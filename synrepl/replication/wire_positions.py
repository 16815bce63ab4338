"""Places in a history, as they are said on the wire."""

from synrepl.ports.history import LogPosition
from synrepl.wire.native import WirePosition

__all__ = ["said_place", "standing"]


def standing(position: LogPosition) -> WirePosition:
    """How a place is said."""
    return WirePosition(position.epoch, position.serial, position.digest)


def said_place(said: WirePosition) -> LogPosition:
    """The place that was said."""
    return LogPosition(said.epoch, said.serial, said.digest)
