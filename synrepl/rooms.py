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


class Room:
    """The declarations of a room; a subclass overrides what it has.

    Its module is imported by every command, and loads nothing else: what the methods return is imported when
    they are called. `build` is called only if `is_wanted`.
    """

    name = ""
    """The name of its folder, and of its entry point."""
    needs: tuple[str, ...] = ()
    """The rooms whose modules it imports: where one of them is missing, this one is as if it were too."""
    after: tuple[str, ...] = ()
    """The rooms whose parts are made before this one's, if they are there and wanted."""
    headings: Mapping[str, str] = MappingProxyType({})
    """Its settings, by their heading in the manual: names separated by spaces."""
    commands: tuple[RoomCommand, ...] = ()
    states: tuple[DaemonState, ...] = ()
    """The states in which its part can be (`Part.state`), the most severe first."""
    page_template = ""
    """A template of its package with the sections of its part on the status page; empty without any.

    It sees the status, and the macros of ``status.html.j2``.
    """
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

    def status_shape(self) -> "Mapping[str, Any]":
        """The shapes of its keys of the status, as far as clients use them (`synrepl.http_api.shapes`)."""
        return {}

    def status_tables(
        self, found: Mapping[str, Any], now: float, *, is_wide: bool = False
    ) -> "Iterable[Iterable[str]]":
        """Tables of its keys of a status for ``synrepl status``, each as its lines."""
        return ()

    def page_names(self) -> Mapping[str, Any]:
        """What its template of the status page may use by name."""
        return {}

    def wire_commands(self) -> "Sequence[type[WireCommand]]":
        """The commands of the wire that only it speaks."""
        return ()

    def metrics_class(self) -> "type[Any] | None":
        """The class of its metrics, made with the registry of a process; None without any."""
        return None

    def is_wanted(self, settings: Any) -> bool:
        """Whether a daemon with these settings has this room."""
        return True

    def build(self, daemon: Any) -> Any:
        """Make what runs in a daemon; None if nothing does. Raises `ConfigError`."""
        return None


def wanted_rooms(settings: Any) -> list[Room]:
    """Return the rooms that a daemon with these settings has, in the order of `rooms`."""
    return [room for room in rooms() if room.is_wanted(settings)]


@cache
def rooms() -> tuple[Room, ...]:
    """Return all installed rooms that have what they need, each behind those that it comes after."""
    try:
        entry_points = distribution("synrepl").entry_points.select(group=ENTRY_POINTS)
    except PackageNotFoundError:
        return ()
    found: dict[str, Room] = {one.name: one.load()() for one in entry_points}
    ordered: dict[str, Room] = {}

    def add(name: str) -> None:
        if name in found and name not in ordered:
            room = found[name]
            for before in (*room.needs, *room.after):
                add(before)
            if ordered.keys() >= {*room.needs}:
                ordered[name] = room

    for name in sorted(found):
        add(name)
    return tuple(ordered.values())
