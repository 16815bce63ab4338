"""The settings of the RESP port."""

import dataclasses
from typing import Any, Final

from synrepl.base.settings import setting
from synrepl.errors import ConfigError
from synrepl.ingest.settings import IngestSettings
from synrepl.transports.settings import endpoints

SENT: Final = "sent"
DURABLE: Final = "durable"
DURABLE_ONLY: Final = "durable-only"


def parse_ack(value: Any) -> str:
    """Parse when rows are passed on."""
    if value not in (SENT, DURABLE, DURABLE_ONLY):
        raise ConfigError(f"must be {SENT}, {DURABLE} or {DURABLE_ONLY}, not {value!r}")
    return str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelSettings(IngestSettings):
    """Where the channel is served, and when rows are passed on."""

    resp: tuple[str, ...] = setting(
        (),
        "The listener that takes the place of a Redis for Synapse's processes, as a Twisted server endpoint"
        " string. May be repeated.",
        parse=lambda value: () if value in ((), [], None) else endpoints(value),
        metavar="ENDPOINT",
        kind="list",
        example="[tcp:9096:interface=127.0.0.1]",
    )
    resp_ack: str = setting(
        SENT,
        "When a row that was published at --resp is passed on: sent (at once), durable (once it is on"
        " disk, or after 5 seconds), or durable-only (once it is on disk; after 5 seconds it is refused).",
        parse=parse_ack,
        metavar="WORD",
    )

    @property
    def has_channel(self) -> bool:
        """Whether this daemon is a peer on a channel of Synapse's processes, on a Redis or at `resp`."""
        return bool(self.resp) or super().has_channel
