"""The version of this daemon, as it says it to others."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def daemon_version() -> str:
    """Return the installed version of synrepl; ``unknown`` without an installation."""
    try:
        return version("synrepl")
    except PackageNotFoundError:
        return "unknown"
