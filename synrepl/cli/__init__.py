"""The command line: one console script, a module for each of its commands."""

from synrepl.cli.main import main

__all__ = ["main"]
