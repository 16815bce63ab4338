"""Commands of followers as lines, and who sends them for other daemons."""

from typing import Final

from synrepl.wire.codec import codec_of
from synrepl.wire.dialect import LEGACY, NEWEST
from synrepl.wire.grammar import CLIENT, SERVER, Command

REMIND_SECONDS: Final = 60.0
"""How often a replica sends a heartbeat and the acks of its connected federation senders. Without them, the
upstream would drop its users and acks.
"""


def line_of(command: Command) -> bytes:
    """Format a command for `NEWEST`, or for `LEGACY` if `NEWEST` lacks it. Raises LocalProtocolError."""
    dialect = NEWEST if NEWEST.release in command.SPAN else LEGACY
    return codec_of(dialect, ours=CLIENT, theirs=SERVER).format(command)


class CommandOrigin:
    """A replica that forwards commands, with the key named `owner`.

    `number` is that of the last command received from it.
    """

    __slots__ = ("last_active_at", "name", "number", "owner", "since")

    def __init__(self, owner: str, name: str, since: int) -> None:
        self.owner = owner
        self.name = name
        self.since = since
        self.number = since - 1
        self.last_active_at = 0.0
