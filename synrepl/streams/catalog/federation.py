"""The queue of federation senders."""

from typing import Any

from synrepl.streams.stream import Stream, row

__all__ = ["FEDERATION", "Federation"]


@row
class Federation:
    """An item for other servers: its type (``p``, ``pd``, ``k``, ``d``...) and its content."""

    type: str
    data: dict[str, Any]


# A queue in the master's memory: after a restart tokens begin at zero again (docs/reference/peers.md#tokens).
# No row replaces another.
FEDERATION = Stream("federation", Federation, key=None, monotonic=False, ephemeral=True)
