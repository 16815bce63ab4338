"""Connections to a server, to a follower or to a broker, whatever the transport, and who owns them."""

from collections.abc import Sequence
from typing import Protocol

from synrepl.wire.dialect import Dialect
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun


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


class ConnectionOwner:
    """Receives the events of a connection: for a follower, a server, or a replica's conversation.

    This class itself ignores everything. `received` may raise `RemoteProtocolError`: its text is
    sent to the peer, and the connection closes.
    """

    def dialect_known(self, dialect: Dialect) -> None:
        """Handle the dialect of the peer. Before this call, only lines that do not show it were received."""

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Handle received commands, in order."""

    def handed_over(self) -> None:
        """Hand the connection over to another owner: the peer is no follower (`Upgrade`)."""

    def pause(self) -> None:
        """Stop sending: the transport's buffer is full."""

    def resume(self) -> None:
        """Send again: the transport's buffer has room."""

    def half_closed(self) -> bool:
        """The peer sends nothing more. Return whether the owner closes once the peer has what it asked for.

        Otherwise the connection is closed now.
        """
        return False

    def failed(self, why: str) -> None:
        """An error closes the connection; `closed` follows when it is closed."""

    def closed(self, why: str) -> None:
        """The connection is closed."""
