"""The room of files: bytes by checksum, and the names of files as a stream."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from synrepl.rooms import PageSection, Room, RoomCommand

if TYPE_CHECKING:
    from synrepl.daemon.parts import DaemonParts, Part
    from synrepl.http_api.route import Route
    from synrepl.wire.error_codes import ErrorCode


class FilesRoom(Room):
    """Files that travel with the log."""

    name = "files"
    after = ("replicas",)
    headings = MappingProxyType({"Log and files": "files fetch_files max_file_bytes"})
    commands = (
        RoomCommand(
            "files",
            "synrepl.files.commands:files",
            "List the names of files, and get a file by its name.",
            "Read and write",
        ),
    )

    def settings_class(self) -> type[Any]:
        from synrepl.files.settings import FilesSettings

        return FilesSettings

    def routes(self) -> "Sequence[Route]":
        from synrepl.files.routes import ROUTES

        return ROUTES

    def error_codes(self) -> "Mapping[str, ErrorCode]":
        from synrepl.files.error_codes import ERROR_CODES

        return ERROR_CODES

    def import_handlers(self) -> None:
        import synrepl.files.handlers  # noqa: F401

    def status_shape(self) -> Mapping[str, Any]:
        return {
            "files": {
                "stored": int,
                "stored_bytes": int,
                "wanted": int,
                "in_flight": int,
                "missing": int,
                "quarantined": int,
                "failing": [{"name": str, "why": str, "tries": int, "next_at": float}],
            }
        }

    def status_tables(
        self, found: Mapping[str, Any], now: float, *, is_wide: bool = False
    ) -> Iterable[Iterable[str]]:
        from synrepl.files.status_table import status_table

        return [status_table(found, now)]

    def page_section(self) -> PageSection:
        return PageSection("files.html.j2")

    def metrics_class(self) -> type[Any]:
        from synrepl.files.metrics import FilesMetrics

        return FilesMetrics

    async def build(self, daemon: "DaemonParts") -> "Part":
        from synrepl.files.part import make_part

        return make_part(daemon)
