"""The commands of the core and of all installed rooms."""

from functools import cache

from synrepl.rooms import rooms
from synrepl.wire.commands import declared_commands
from synrepl.wire.grammar import Command


@cache
def all_commands() -> tuple[type[Command], ...]:
    """Return all commands, those of the core first."""
    return (*declared_commands(), *(command for room in rooms() for command in room.wire_commands()))
