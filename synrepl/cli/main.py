"""The `synrepl` command group."""

import click

from synrepl.cli.command import CONTEXTS_GONE, MainGroup


@click.group(
    cls=MainGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    places={
        "serve": ("synrepl.cli.serve:serve", "Run the daemon in the foreground."),
        "demo": ("synrepl.cli.demo:demo", "Show a daemon at work: two workers, two recorded sessions."),
        "config": ("synrepl.cli.config:config", "Check the configuration of a daemon."),
        "status": ("synrepl.cli.status:status", "Show the status of a daemon."),
        "top": ("synrepl.cli.status:top", "Watch a daemon on one screen."),
        "who": ("synrepl.cli.status:who", "Show the followers of a daemon."),
        "streams": ("synrepl.cli.streams:streams", "Show the streams of a daemon, or declare one."),
        "replicas": ("synrepl.cli.status:replicas", "Show the replicas of a daemon."),
        "tail": ("synrepl.cli.tail:tail", "Follow a server, a Redis or the changelog of a daemon."),
        "append": ("synrepl.cli.append:append", "Append rows from standard input."),
        "files": ("synrepl.files.commands:files", "List the names of files, and get a file by its name."),
        "refused": ("synrepl.cli.refused:refused", "List and replay facts that could not be read."),
        "replay": ("synrepl.cli.replay:replay", "Append the rows of a recorded session."),
        "leases": ("synrepl.cli.status:leases", "List, add and drop leases of replicas."),
        "keys": ("synrepl.replicas.commands.keys:keys", "List, add and revoke keys that replicas accept too."),
        "tls": ("synrepl.cli.tls:tls", "Make certificates for daemons and their clients."),
        "promote": ("synrepl.replicas.commands.roles:promote", "Make a replica the primary."),
        "resync": ("synrepl.replicas.commands.roles:resync", "Make a fenced or diverged daemon a replica again."),
        "inspect": ("synrepl.homeserver.commands.inspect:inspect", "Find what is stuck in a live homeserver; read only."),
        "doctor": ("synrepl.homeserver.commands.doctor:doctor", "Find problems of the streams in a database."),
        "probe": ("synrepl.homeserver.commands.probe:probe", "Measure how long processes take to show a write."),
        "explain": (
            "synrepl.homeserver.commands.explain:explain_command",
            "Say what a token or log line of Synapse means.",
        ),
        "invalidate": (
            "synrepl.homeserver.commands.invalidate:invalidate",
            "Make stale caches of a live homeserver right.",
        ),
        "caches": ("synrepl.cli.caches:caches", "Check the caches of a worker."),
        "pipeline": ("synrepl.pipeline.commands.jobs:pipeline", "Run Spark jobs on the streams."),
        "completion": ("synrepl.cli.completion:completion", "Print the completion script of a shell."),
    },
    headings={
        "Inspect a homeserver": "inspect explain probe doctor",
        "Run": "serve demo config",
        "Look": "status top who streams replicas",
        "Read and write": "tail append replay files",
        "Operate": "leases keys refused promote resync invalidate caches",
        "Analyze": "pipeline",
        "Set up": "tls completion",
    },
    gone={"context": CONTEXTS_GONE},
)
@click.version_option(package_name="synrepl", message="%(prog)s %(version)s")
def main() -> None:
    """Follow, feed and inspect the replication streams of a homeserver."""
