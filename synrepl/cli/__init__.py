"""The command line: one console script, one module per command."""

from synrepl.cli.main import main

__all__ = ["main"]
