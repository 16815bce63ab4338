"""The room of the homeserver: its tables as a source of facts, and commands that look at it from outside."""

from synrepl.rooms import Command, Room

LOOK = "Inspect a homeserver"


class HomeserverRoom(Room):
    """Looks at the processes and tables of a homeserver."""

    name = "homeserver"
    after = ("replicas",)
    commands = (
        Command(
            "inspect",
            "synrepl.homeserver.commands.inspect:inspect",
            "Find what is stuck in a live homeserver; read only.",
            LOOK,
        ),
        Command(
            "explain",
            "synrepl.homeserver.commands.explain:explain_command",
            "Say what a token or log line of Synapse means.",
            LOOK,
        ),
        Command(
            "probe",
            "synrepl.homeserver.commands.probe:probe",
            "Measure how long processes take to show a write.",
            LOOK,
        ),
        Command(
            "doctor",
            "synrepl.homeserver.commands.doctor:doctor",
            "Find problems of the streams in a database.",
            LOOK,
        ),
        Command(
            "invalidate",
            "synrepl.homeserver.commands.invalidate:invalidate",
            "Make stale caches of a live homeserver right.",
            "Operate",
        ),
    )

    def import_handlers(self) -> None:
        import synrepl.homeserver.handlers  # noqa: F401
