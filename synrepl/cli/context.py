"""``synrepl context``: name the daemons that commands connect to."""

from pathlib import Path

import click

from synrepl.cli.command import CliCommand, CliGroup
from synrepl.cli.contexts import Context, Contexts
from synrepl.cli.options import Output, ca_option, output_option, secret_option
from synrepl.cli.tables import table
from synrepl.http_client import BlockingClient


@click.group(cls=CliGroup)
def context() -> None:
    """Name the daemons that commands connect to: --context NAME, or the one in use."""


@context.command("list", cls=CliCommand)
@output_option('{"current": name, "contexts": {name: {"url", "secret_file", "ca_file"}}}', is_table=True)
def list_contexts(output: Output) -> None:
    """List the contexts; an asterisk marks the one in use."""
    found = Contexts.load()
    rows = [
        ("*" if name == found.current else "", name, one.url, *(str(file or "") for file in one[1:]))
        for name, one in sorted(found.by_name.items())
    ]
    result = {
        "current": found.current,
        "contexts": {
            name: {"url": url, "secret_file": secret or None, "ca_file": ca or None}
            for _, name, url, secret, ca in rows
        },
    }
    lines = table(("", "name", "url", "secret file", "CA file"), rows) if rows else ["no contexts"]
    output.show(result, lines)


@context.command(cls=CliCommand)
@click.argument("name")
def use(name: str) -> None:
    """Make NAME the context in use: commands connect to it without --url, --context and $SYNREPL_URL."""
    contexts = Contexts.load()
    contexts.get(name)
    contexts.current = name
    contexts.save()


@context.command(cls=CliCommand)
@click.argument("name")
@click.option(
    "--url",
    required=True,
    metavar="URL",
    help="The HTTP address of the daemon, or several of one log with commas, in order of preference.",
)
@secret_option
@ca_option
def add(name: str, url: str, secret_file: Path | None, ca_file: Path | None) -> None:
    """Add a daemon as NAME, or replace its address. The first one added is then the one in use."""
    daemon = BlockingClient(url)  # raises if this is not a URL
    contexts = Contexts.load()
    files = (None if path is None else path.absolute() for path in (secret_file, ca_file))
    contexts.add(name, Context(",".join(daemon.addresses.addresses), *files))
    contexts.current = contexts.current or name
    contexts.save()
