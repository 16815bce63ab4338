"""What a federation sender is to send."""

from typing import Any

from synrepl.streams.stream import Stream, row

__all__ = ["FEDERATION", "Federation"]


@row
class Federation:
    """Something for other servers: its type (``p``, ``pd``, ``k``, ``d``...) and what it says."""

    type: str
    data: dict[str, Any]


# A queue in the master's memory: a restarted one counts from zero again. Every row is its own.
FEDERATION = Stream("federation", Federation, key=None, monotonic=False, ephemeral=True)
