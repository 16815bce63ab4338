"""The room of replicas: daemons that copy the log of another one, serve it on, and can take over."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from synrepl.rooms import DaemonState, PageSection, Room, RoomCommand

if TYPE_CHECKING:
    from synrepl.daemon.parts import DaemonParts, Part
    from synrepl.http_api.route import Route
    from synrepl.wire.error_codes import ErrorCode
    from synrepl.wire.grammar import Command as WireCommand


class ReplicasRoom(Room):
    """Copies of a log, and which daemon is the primary."""

    name = "replicas"
    headings = MappingProxyType(
        {
            "Log and files": "acks lease_seconds lease_bytes backup_seconds",
            "Replica": "upstream upstream_streams upstream_writers replica_name anonymous resync_on_fork"
            " stale_seconds refuse_stale_reads trust_stale_keys",
            "Connections": "heartbeat_seconds",
        }
    )
    commands = (
        RoomCommand(
            "replicas",
            "synrepl.replicas.commands.replicas:replicas",
            "Show the replicas of a daemon.",
            "Look",
        ),
        RoomCommand(
            "leases",
            "synrepl.replicas.commands.replicas:leases",
            "List, add and drop leases of replicas.",
            "Operate",
        ),
        RoomCommand(
            "keys",
            "synrepl.replicas.commands.keys:keys",
            "List, add and revoke keys that replicas accept too.",
            "Operate",
        ),
        RoomCommand(
            "backup",
            "synrepl.replicas.commands.backup:backup",
            "Back up the log of a daemon; verify backups.",
            "Operate",
        ),
        RoomCommand(
            "restore",
            "synrepl.replicas.commands.backup:restore",
            "Make a log of a backup.",
            "Operate",
        ),
        RoomCommand(
            "promote", "synrepl.replicas.commands.roles:promote", "Make a replica the primary.", "Operate"
        ),
        RoomCommand(
            "resync",
            "synrepl.replicas.commands.roles:resync",
            "Make a fenced or diverged daemon a replica again.",
            "Operate",
        ),
    )

    states = (
        DaemonState(
            "stopped",
            "this copy is ahead of its upstream, or its history differs: an operator must decide (resync)",
            "synrepl resync saves the facts that only this copy has to a file, and joins again"
            " (manual: howto/replicas)",
            kind="bad",
        ),
        DaemonState(
            "fenced",
            "another daemon is primary; this one refuses appends",
            "run synrepl resync to become a replica of the other daemon; or, if the other daemon is not"
            " primary after all, synrepl promote --force (manual: howto/replicas)",
            kind="bad",
        ),
        DaemonState("joining", "this replica has no complete copy yet, and answers no reads"),
        DaemonState(
            "stale",
            "this replica was last up to date longer ago than --stale-seconds, or has not compared its copy"
            " with its upstream since the start; it may lack newer facts, and its facts are still sent",
            "start the primary again, or the network to it; if it is lost for good, make this replica the"
            " primary: synrepl promote --force (manual: howto/replicas)",
        ),
        DaemonState("handing over", "another daemon is becoming primary; appends are refused for a moment"),
    )

    def settings_class(self) -> type[Any]:
        from synrepl.replicas.settings import ReplicasSettings

        return ReplicasSettings

    def check_settings(self, settings: Any) -> None:
        from synrepl.replicas.settings import check_settings

        check_settings(settings)

    def role_of(self, settings: Any) -> str:
        return f"replica of {', '.join(settings.upstream)}" if settings.upstream else ""

    def routes(self) -> "Sequence[Route]":
        from synrepl.replicas.routes import ROUTES

        return ROUTES

    def error_codes(self) -> "Mapping[str, ErrorCode]":
        from synrepl.replicas.error_codes import ERROR_CODES

        return ERROR_CODES

    def import_handlers(self) -> None:
        import synrepl.replicas.http.admin_handlers
        import synrepl.replicas.http.key_handlers
        import synrepl.replicas.http.native_handlers
        import synrepl.replicas.http.replica_handlers  # noqa: F401

    def status_shape(self) -> Mapping[str, Any]:
        from synrepl.replicas.shapes import STATUS

        return STATUS

    def status_tables(
        self, found: Mapping[str, Any], now: float, *, is_wide: bool = False
    ) -> Iterable[Iterable[str]]:
        from synrepl.replicas.commands.tables import status_tables

        return status_tables(found, now, is_wide=is_wide)

    def page_section(self) -> PageSection:
        from synrepl.replicas.relay.relay_states import RelayState
        from synrepl.replicas.relay.replica_registry import REPLICA_STATES

        names = {
            "RELAY_STATES": {state.value: state.means for state in RelayState},
            "REPLICA_STATES": REPLICA_STATES,
        }
        return PageSection("replicas.html.j2", names)

    def wire_commands(self) -> "Sequence[type[WireCommand]]":
        from synrepl.replicas.wire.native import NATIVE_COMMANDS

        return NATIVE_COMMANDS

    def metrics_class(self) -> type[Any]:
        from synrepl.replicas.metrics import ReplicasMetrics

        return ReplicasMetrics

    async def build(self, daemon: "DaemonParts") -> "Part":
        from synrepl.replicas.part import make_part

        return make_part(daemon)
