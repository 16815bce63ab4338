"""The room of replicas: daemons that copy the log of another one, serve it on, and can take over."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from synrepl.rooms import Command, Room

if TYPE_CHECKING:
    pass


class ReplicasRoom(Room):
    """Copies of a log, and which daemon is the primary."""

    name = "replicas"
    headings = MappingProxyType(
        {
            "Log and files": "acks lease_seconds lease_bytes",
            "Replica": "upstream upstream_streams upstream_writers replica_name anonymous resync_on_fork"
            " stale_seconds refuse_stale_reads trust_stale_keys",
            "Connections": "heartbeat_seconds",
        }
    )
    commands = (
        Command(
            "replicas",
            "synrepl.replicas.commands.replicas:replicas",
            "Show the replicas of a daemon.",
            "Look",
        ),
        Command(
            "leases",
            "synrepl.replicas.commands.replicas:leases",
            "List, add and drop leases of replicas.",
            "Operate",
        ),
        Command(
            "keys",
            "synrepl.replicas.commands.keys:keys",
            "List, add and revoke keys that replicas accept too.",
            "Operate",
        ),
        Command(
            "promote", "synrepl.replicas.commands.roles:promote", "Make a replica the primary.", "Operate"
        ),
        Command(
            "resync",
            "synrepl.replicas.commands.roles:resync",
            "Make a fenced or diverged daemon a replica again.",
            "Operate",
        ),
    )

    def settings_class(self) -> type[Any]:
        from synrepl.replicas.settings import ReplicasSettings

        return ReplicasSettings

    def check_settings(self, settings: Any) -> None:
        from synrepl.replicas.settings import check_settings

        check_settings(settings)

    def role_of(self, settings: Any) -> str:
        return f"replica of {', '.join(settings.upstream)}" if settings.upstream else ""

    def import_handlers(self) -> None:
        import synrepl.replicas.http.admin_handlers
        import synrepl.replicas.http.key_handlers
        import synrepl.replicas.http.native_handlers
        import synrepl.replicas.http.replica_handlers  # noqa: F401
