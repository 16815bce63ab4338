"""The room of replicas: daemons that copy the log of another one, serve it on, and can take over."""

from synrepl.rooms import Command, Room


class ReplicasRoom(Room):
    """Copies of a log, and which daemon is the primary."""

    name = "replicas"
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

    def import_handlers(self) -> None:
        import synrepl.replicas.http.admin_handlers
        import synrepl.replicas.http.key_handlers
        import synrepl.replicas.http.native_handlers
        import synrepl.replicas.http.replica_handlers  # noqa: F401
