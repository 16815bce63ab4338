"""Commands of followers go to every process above that takes them."""

from typing import Any

import pytest
from twisted.internet.task import Clock

from synrepl.replication.serving.commands import FollowerCommands
from synrepl.streams.table import StreamTable
from synrepl.wire.commands import RemoteServerUp
from synrepl.wire.grammar import Command

UP = RemoteServerUp(server="far.example.org")


class FakeForwarder:
    """Takes commands, or does not."""

    def __init__(self, *, accepts: bool, is_active: bool = True) -> None:
        self.is_active = is_active
        self.offered: list[Command] = []
        self._accepts = accepts

    def forward(self, command: Command) -> bool:
        """Note it."""
        self.offered.append(command)
        return self._accepts


@pytest.mark.parametrize(
    ("forwarders", "is_accepted", "dropped"),
    [
        ([FakeForwarder(accepts=True), FakeForwarder(accepts=False)], True, []),
        ([FakeForwarder(accepts=False), FakeForwarder(accepts=False)], False, ["REMOTE_SERVER_UP"]),
        # It waits in the feed then.
        ([FakeForwarder(accepts=False, is_active=False)], False, []),
        ([], False, []),
    ],
)
def test_what_nobody_takes_is_counted_as_dropped(
    forwarders: list[FakeForwarder], is_accepted: bool, dropped: list[str]
) -> None:
    """Of those that are there; one of them is enough."""
    log: Any = None
    names: list[str] = []
    commands = FollowerCommands(log, StreamTable.default(), Clock(), instance="us", dropped=names.append)
    commands.forwarders.extend(forwarders)

    assert is_accepted is commands.forward(UP)
    assert dropped == names
    assert [[UP]] * len([one for one in forwarders if one.is_active]) == [
        one.offered for one in forwarders if one.offered
    ]
