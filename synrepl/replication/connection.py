"""The interface of a connection to a server, to a follower or to a broker, whatever the transport."""

from typing import Protocol

from synrepl.wire.grammar import Command


class Connection(Protocol):
    """A connection that commands are sent on: to one peer, or to all processes on a broker."""

    def write(self, data: bytes) -> None:
        """Send these lines. May call `pause` of the connection's owner before it returns."""

    def send(self, command: Command) -> None:
        """Send one command. Raises `LocalProtocolError` if not allowed, and on a broker `NotConnected`."""

    def fail(self, why: str) -> None:
        """Send ERROR, then close. A broker is not sent anything: the connection is closed and made again."""

    def established(self) -> None:
        """The first POSITION was applied: reset the reconnect backoff."""

    def pause_reading(self) -> None:
        """Stop reading."""

    def resume_reading(self) -> None:
        """Read again."""
