"""The `synrepl` command group: the commands of the core, and those of the rooms."""

from typing import Final

import click

from synrepl.cli.command import CONTEXTS_GONE, MainGroup
from synrepl.rooms import RoomCommand, rooms

HEADINGS: Final = (
    "Inspect a homeserver",
    "Run",
    "Look",
    "Read and write",
    "Operate",
    "Analyze",
    "Set up",
)
"""The headings of the list of commands, in its order."""

CORE_COMMANDS: Final = (
    RoomCommand("serve", "synrepl.cli.serve:serve", "Run the daemon in the foreground.", "Run"),
    RoomCommand(
        "demo", "synrepl.cli.demo:demo", "Show a daemon at work: two workers, two recorded sessions.", "Run"
    ),
    RoomCommand("config", "synrepl.cli.config:config", "Check the configuration of a daemon.", "Run"),
    RoomCommand("status", "synrepl.cli.status:status", "Show the status of a daemon.", "Look"),
    RoomCommand("top", "synrepl.cli.status:top", "Watch a daemon on one screen.", "Look"),
    RoomCommand("who", "synrepl.cli.status:who", "Show the followers of a daemon.", "Look"),
    RoomCommand(
        "streams", "synrepl.cli.streams:streams", "Show the streams of a daemon, or declare one.", "Look"
    ),
    RoomCommand(
        "tail",
        "synrepl.cli.tail:tail",
        "Follow a server, a Redis or the changelog of a daemon.",
        "Read and write",
    ),
    RoomCommand("append", "synrepl.cli.append:append", "Append rows from standard input.", "Read and write"),
    RoomCommand(
        "refused", "synrepl.cli.refused:refused", "List and replay facts that could not be read.", "Operate"
    ),
    RoomCommand(
        "replay", "synrepl.cli.replay:replay", "Append the rows of a recorded session.", "Read and write"
    ),
    RoomCommand("tls", "synrepl.cli.tls:tls", "Make certificates for daemons and their clients.", "Set up"),
    RoomCommand("caches", "synrepl.cli.caches:caches", "Check the caches of a worker.", "Operate"),
    RoomCommand(
        "completion", "synrepl.cli.completion:completion", "Print the completion script of a shell.", "Set up"
    ),
)

COMMANDS: Final = (*CORE_COMMANDS, *(one for room in rooms() for one in room.commands))


@click.group(
    cls=MainGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    places={one.name: (one.place, one.line) for one in COMMANDS},
    headings={
        heading: " ".join(one.name for one in COMMANDS if one.heading == heading) for heading in HEADINGS
    },
    gone={"context": CONTEXTS_GONE},
)
@click.version_option(package_name="synrepl", message="%(prog)s %(version)s")
def main() -> None:
    """Follow, feed and inspect the replication streams of a homeserver."""
