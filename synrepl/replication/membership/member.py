"""ChannelMember: what the links to a channel tell a member of it."""

from collections.abc import Sequence

from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun


class ChannelMember:
    """A process on a channel. It ignores everything here; a subclass handles what matters to it."""

    def subscriber_up(self) -> None:
        """Every subscription is confirmed: no message is missed until `subscriber_down`."""

    def subscriber_down(self, why: str) -> None:
        """The subscriber's connection was lost: later messages are missed."""

    def publisher_up(self) -> None:
        """The publisher's connection is up."""

    def publisher_down(self, why: str) -> None:
        """The publisher's connection was lost, and possibly the last messages with it. Ends a `pause` too."""

    def unreachable(self, why: str) -> None:
        """A connection attempt failed; it is retried. Each of the two connections reports its own."""

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Handle messages from the channel in its order, own ones included. Raises RemoteProtocolError."""

    def pause(self) -> None:
        """The transport's buffer is full."""

    def resume(self) -> None:
        """The transport's buffer has space again."""
