"""Rooms: features of the daemon and the program that live in a folder of their own.

The core names no room. A room declares itself by an entry point of the group ``synrepl.rooms`` in `setup.py`;
without its folder and that line, everything else works as before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from synrepl.http_api.route import Route
    from synrepl.wire.error_codes import ErrorCode
    from synrepl.wire.grammar import Command as WireCommand

ENTRY_POINTS: Final = "synrepl.rooms"
"""The group of entry points, each with the name of a room and the class that declares it."""


class RoomCommand(NamedTuple):
    """A command of the program.

    `place` is ``module:attribute``, `line` its line in the list of commands, `heading` that of its list.
    """

    name: str
    place: str
    line: str
    heading: str


class DaemonState(NamedTuple):
    """A state of a daemon that is worse than that it lacks something: no operator can overlook it.

    `means` is a sentence about it, `what_to_do` what an operator should do (empty: nothing). `kind` is its
    color on the status page: ``bad`` or ``busy``.
    """

    word: str
    means: str
    what_to_do: str = ""
    kind: str = "busy"


class PageSection(NamedTuple):
    """A part of the status page: a template of the room's package, and what that may use by name.

    The template sees the status too, and the macros of ``status.html.j2``.
    """

    template: str
    names: Mapping[str, Any] = MappingProxyType({})


class Room:
    """The declarations of a room; a subclass overrides what it has.

    Its module is imported by every command, and loads nothing else: what the methods return is imported when
    they are called. `build` is called only if `is_wanted`.
    """

    name = ""
    """The name of its folder, and of its entry point."""
    after: tuple[str, ...] = ()
    """The rooms whose parts are made before this one's, if they are there and wanted."""
    headings: Mapping[str, str] = MappingProxyType({})
    """Its settings, by their heading in the manual: names separated by spaces."""
    commands: tuple[RoomCommand, ...] = ()
    states: tuple[DaemonState, ...] = ()
    """The states in which its role can be (`IRole.state`), the most severe first."""
    extensions: Mapping[str, str] = MappingProxyType({})
    """What it adds to commands of the core: by the name of a command, ``module:function`` of a function that
    takes the command, and returns it with options of the room."""
    absent_status: Mapping[str, Any] = MappingProxyType({})
    """Its keys of the status of a daemon that does not have it, as the settings do not want it."""

    def settings_class(self) -> type[Any] | None:
        """The dataclass with its settings (`synrepl.base.settings`); None without any."""
        return None

    def check_settings(self, settings: Any) -> None:
        """Raise `ConfigError` if settings contradict each other."""

    def role_of(self, settings: Any) -> str:
        """What a daemon with these settings is in place of a primary, in words; empty if it is one."""
        return ""

    def listeners(self, settings: Any) -> "Sequence[tuple[str, str]]":
        """The listeners that its `Part` will have, whose clients show keys: the name of the setting of each,
        and its server endpoint string."""
        return ()

    def assigned_streams(self, settings: Any) -> Collection[str]:
        """The streams that its `Part.fact_source` brings, with their tokens: nobody can post to them."""
        return ()

    def routes(self) -> "Sequence[Route]":
        """Its routes of the HTTP API."""
        return ()

    def import_handlers(self) -> None:
        """Import the modules whose functions handle its routes (`synrepl.transports.http.handlers`)."""

    def error_codes(self) -> "Mapping[str, ErrorCode]":
        """The error codes that only it answers with."""
        return {}

    def status_shape(self) -> "Mapping[str, Any]":
        """The shapes of its keys of the status, as far as clients use them (`synrepl.http_api.shapes`)."""
        return {}

    def status_tables(
        self, found: Mapping[str, Any], now: float, *, is_wide: bool = False
    ) -> "Iterable[Iterable[str]]":
        """Tables of its keys of a status for ``synrepl status``, each as its lines."""
        return ()

    def page_section(self) -> PageSection | None:
        """Its part of the status page; None without any."""
        return None

    def wire_commands(self) -> "Sequence[type[WireCommand]]":
        """The commands of the wire that only it speaks."""
        return ()

    def metrics_class(self) -> "type[Any] | None":
        """The class of its metrics, made with the registry of a process; None without any."""
        return None

    def is_wanted(self, settings: Any) -> bool:
        """Whether a daemon with these settings has this room."""
        return True

    async def build(self, daemon: Any) -> Any:
        """Make what runs in a daemon (`synrepl.daemon.parts`), before anything has read the log.

        Returns None if nothing does. Raises `ReplicationError`.
        """
        return None


def wanted_rooms(settings: Any) -> list[Room]:
    """Return the rooms that a daemon with these settings has, in the order of `rooms`."""
    return [room for room in rooms() if room.is_wanted(settings)]


@cache
def rooms() -> tuple[Room, ...]:
    """Return all installed rooms, each behind those that it comes after."""
    try:
        entry_points = distribution("synrepl").entry_points.select(group=ENTRY_POINTS)
    except PackageNotFoundError:
        return ()
    found: dict[str, Room] = {one.name: one.load()() for one in entry_points}
    ordered: dict[str, Room] = {}

    def add(name: str) -> None:
        if name in found and name not in ordered:
            for before in found[name].after:
                add(before)
            ordered[name] = found[name]

    for name in sorted(found):
        add(name)
    return tuple(ordered.values())
