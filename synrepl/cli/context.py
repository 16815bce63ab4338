"""``synrepl context``: name the daemons that commands connect to."""

from pathlib import Path

import click

from synrepl.cli.command import EXIT_CODES, CliCommand
from synrepl.cli.contexts import Context, Contexts
from synrepl.cli.options import Output, output_option
from synrepl.cli.tables import table
from synrepl.http_client import BlockingClient

__all__ = ["context"]


@click.group(epilog=EXIT_CODES)
def context() -> None:
    """Name the daemons that commands connect to: --context NAME, or the one in use."""


@context.command("list", cls=CliCommand)
@output_option('{"current": name, "contexts": {name: {"url", "secret_file"}}}', is_table=True)
def list_contexts(output: Output) -> None:
    """List the contexts; an asterisk marks the one in use."""
    found = Contexts.load()
    rows = [
        ("*" if name == found.current else "", name, one.url, str(one.secret_file or ""))
        for name, one in sorted(found.by_name.items())
    ]
    result = {
        "current": found.current,
        "contexts": {name: {"url": url, "secret_file": path or None} for _, name, url, path in rows},
    }
    lines = table(("", "name", "url", "secret file"), rows) if rows else ["no contexts"]
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
@click.option("--url", required=True, metavar="URL", help="The HTTP address of the daemon.")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the shared secret of the HTTP API.",
)
def add(name: str, url: str, secret_file: Path | None) -> None:
    """Add a daemon as NAME, or change its address. The first one is in use from then on."""
    daemon = BlockingClient(url)  # raises if this is not a URL
    contexts = Contexts.load()
    contexts.add(name, Context(daemon.url, secret_file.absolute() if secret_file is not None else None))
    contexts.current = contexts.current or name
    contexts.save()
