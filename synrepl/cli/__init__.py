"""The command line `synrepl`. `synrepl.cli.main` lists the commands, each with its module."""

from synrepl.cli.main import main

__all__ = ["main"]
