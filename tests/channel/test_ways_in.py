"""The RESP port as a way in for facts: nothing of what the daemon reads as its own state is stored."""

import json
from types import SimpleNamespace
from typing import Any, Final, cast

from synrepl.base.access import Keyring
from synrepl.channel.part import ChannelPart
from synrepl.channel.resp.server import RespServer
from synrepl.channel.settings import ChannelSettings
from synrepl.config import Settings
from synrepl.replication.hooks import Alone
from tests.channel.test_connection import Client
from tests.service import test_ways_in as ways

PORT: Final = "tcp:6379:interface=127.0.0.1"


class PortTests(ways.WaysInTests):
    """All ways in, the RESP port among them."""

    def part(self, port: RespServer, **settings: Any) -> ChannelPart:
        """The channel at this port."""
        built = Settings.build({"server_name": "hs.example", **settings})
        made = ChannelPart(
            cast(ChannelSettings, built),
            self.clock,
            self.log,
            self.publisher,
            Alone(),
            table=self.table,
            metrics=self.metrics,
            server=port,
        )
        self.addCleanup(made.stop)
        return made

    def sources(self) -> dict[str, ways.Feed]:
        """The RESP port too."""
        port = RespServer(self.clock, keys=Keyring(), metrics=self.metrics)
        at_port = self.manager(host=self.part(port, resp=[PORT]), resp=[PORT])
        assert at_port.channel is not None
        at_port.channel.start()

        def published(stream: str, writer: str, row: list[Any], token: int) -> None:
            text = json.dumps(row, separators=(",", ":"))
            client = Client(SimpleNamespace(server=port, clock=self.clock))  # type: ignore[arg-type]  # all that it needs
            client.ask("PUBLISH", "hs.example", f"POSITION {stream} {writer} {token - 1} {token - 1}")
            client.ask("PUBLISH", "hs.example", f"RDATA {stream} {writer} {token} {text}")

        return {**super().sources(), "the RESP port": published}

    def test_a_row_that_is_never_stored_holds_back_no_other(self) -> None:
        """With `durable-only` a row is passed on once it is on disk: this one never will be."""
        port = RespServer(self.clock, keys=Keyring(), metrics=self.metrics)
        settings: dict[str, Any] = {"resp": [PORT], "resp_ack": "durable-only"}
        made = self.manager(host=self.part(port, instance_name="us", **settings), **settings)
        assert made.channel is not None
        made.channel.start()
        hears, says = (Client(SimpleNamespace(server=port, clock=self.clock)) for _ in range(2))  # type: ignore[arg-type]
        hears.ask("SUBSCRIBE", "hs.example")
        for line in (
            "POSITION promises w1 1 1",
            'RDATA promises w1 2 ["acks",["1"],[]]',
            "POSITION push_rules w1 1 1",
            'RDATA push_rules w1 2 ["@ada:hs"]',
        ):
            says.ask("PUBLISH", "hs.example", line)
        self.pass_time()

        self.assertIn("@ada:hs", hears.say(b""))
        assert port.channel is not None
        self.assertFalse(port.channel.is_refusing)
