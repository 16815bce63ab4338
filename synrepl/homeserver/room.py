"""The room of the homeserver: its tables as a source of facts, and commands that look at it from outside."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from synrepl.homeserver.absence import ABSENT_STATUS
from synrepl.rooms import PageSection, Room, RoomCommand

if TYPE_CHECKING:
    from synrepl.daemon.parts import DaemonParts, Part
    from synrepl.http_api.route import Route
    from synrepl.wire.error_codes import ErrorCode

LOOK = "Inspect a homeserver"


class HomeserverRoom(Room):
    """Looks at the processes and tables of a homeserver."""

    name = "homeserver"
    headings = MappingProxyType(
        {
            "Sources of facts": "table_streams tables_database",
            "Watch": "homeserver homeserver_workers",
        }
    )
    absent_status = ABSENT_STATUS
    extensions = MappingProxyType({"streams": "synrepl.homeserver.commands.held_streams:extend"})
    commands = (
        RoomCommand(
            "inspect",
            "synrepl.homeserver.commands.inspect:inspect",
            "Find what is stuck in a live homeserver; read only.",
            LOOK,
        ),
        RoomCommand(
            "explain",
            "synrepl.homeserver.commands.explain:explain_command",
            "Say what a token or log line of Synapse means.",
            LOOK,
        ),
        RoomCommand(
            "probe",
            "synrepl.homeserver.commands.probe:probe",
            "Measure how long processes take to show a write.",
            LOOK,
        ),
        RoomCommand(
            "doctor",
            "synrepl.homeserver.commands.doctor:doctor",
            "Find problems of the streams in a database.",
            LOOK,
        ),
        RoomCommand(
            "invalidate",
            "synrepl.homeserver.commands.invalidate:invalidate",
            "Make stale caches of a live homeserver right.",
            "Operate",
        ),
    )

    def settings_class(self) -> type[Any]:
        from synrepl.homeserver.settings import HomeserverSettings

        return HomeserverSettings

    def check_settings(self, settings: Any) -> None:
        from synrepl.homeserver.settings import homeserver_settings

        homeserver_settings(settings).check()

    def assigned_streams(self, settings: Any) -> Collection[str]:
        from synrepl.homeserver.settings import homeserver_settings

        return [one.stream for one in homeserver_settings(settings).followed_tables]

    def status_shape(self) -> Mapping[str, Any]:
        return {"tables": [{"stream": str}], "writers": [{"stream": str, "writer": str}]}

    def page_section(self) -> PageSection:
        return PageSection("homeserver.html.j2")

    def routes(self) -> "Sequence[Route]":
        from synrepl.homeserver.routes import ROUTES

        return ROUTES

    def metrics_class(self) -> type[Any]:
        from synrepl.homeserver.watch_metrics import WatchMetrics

        return WatchMetrics

    def is_wanted(self, settings: Any) -> bool:
        return bool(settings.homeserver or settings.table_streams)

    async def build(self, daemon: "DaemonParts") -> "Part | None":
        from synrepl.homeserver.part import build

        return build(daemon)

    def error_codes(self) -> "Mapping[str, ErrorCode]":
        from synrepl.homeserver.error_codes import ERROR_CODES

        return ERROR_CODES

    def import_handlers(self) -> None:
        import synrepl.homeserver.handlers  # noqa: F401
