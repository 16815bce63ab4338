"""Conversion between positions of the log and positions on the wire."""

from synrepl.ports.history import LogPosition
from synrepl.wire.native import WirePosition

__all__ = ["log_position", "wire_position"]


def wire_position(position: LogPosition) -> WirePosition:
    """The wire form of a log position."""
    return WirePosition(position.epoch, position.serial, position.digest)


def log_position(position: WirePosition) -> LogPosition:
    """The log position of a wire form."""
    return LogPosition(position.epoch, position.serial, position.digest)
