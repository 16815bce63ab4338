"""What the installation of synrepl wrote down: its version and its entry points.

`importlib.metadata` reads that of every package. Its import takes 0.5 MiB of each daemon and a part of the
start of each command, for a few lines of two files. It is asked where no folder of ``sys.path`` has synrepl.
"""

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

_folder: Final = re.compile(r"synrepl(-[^-]+)?\.(dist|egg)-info")


def entry_points(group: str) -> Mapping[str, str]:
    """Return the entry points of this group by name, as ``module:attribute``; none if not installed."""
    folder = _found()
    if folder is None:
        from importlib.metadata import PackageNotFoundError, distribution

        try:
            return {one.name: one.value for one in distribution("synrepl").entry_points.select(group=group)}
        except PackageNotFoundError:
            return {}
    found, heading = {}, ""
    for line in map(str.strip, _lines(folder / "entry_points.txt")):
        if line.startswith("["):
            heading = line
        elif heading == f"[{group}]" and "=" in line:
            name, _, place = line.partition("=")
            found[name.strip()] = place.strip()
    return found


@cache
def version() -> str:
    """Return the version of synrepl; ``unknown`` if it is not installed."""
    folder = _found()
    if folder is None:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as version_of

        try:
            return version_of("synrepl")
        except PackageNotFoundError:
            return "unknown"
    lines = [*_lines(folder / "METADATA"), *_lines(folder / "PKG-INFO")]
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Version:")), "unknown")


@cache
def _found() -> Path | None:
    """Return the folder of the installation that is imported, as far as ``sys.path`` has it."""
    for where in sys.path:
        try:
            names = os.listdir(where or ".")  # noqa: PTH208  # only the names are looked at
        except OSError:
            continue
        if found := min(filter(_folder.fullmatch, names), default=""):
            return Path(where, found).absolute()
    return None


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.is_file() else []
