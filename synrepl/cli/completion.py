"""``synrepl completion``: completion of commands and options in a shell."""

import click
from click.shell_completion import get_completion_class

from synrepl.cli.command import CliCommand


@click.command(cls=CliCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    For bash: ``eval "$(synrepl completion bash)"`` in ~/.bashrc; for zsh the same in ~/.zshrc; for fish:
    ``synrepl completion fish > ~/.config/fish/completions/synrepl.fish``.
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "synrepl", "_SYNREPL_COMPLETE").source())
