"""Writes constraints.txt: the version of each library of `synrepl[test,docs]` in this environment.

    constraints.py [--check]

`--check` writes nothing, and fails if a version differs.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).resolve().parent.parent / "constraints.txt"


def installed(name: str, extras: frozenset[str], found: dict[str, str]) -> None:
    """Add the libraries that a distribution needs, with their versions, to `found`."""
    from pip._vendor.packaging.requirements import Requirement

    for line in distribution(name).requires or ():
        wanted = Requirement(line)
        if wanted.marker and not any(wanted.marker.evaluate({"extra": one}) for one in extras or {""}):
            continue
        key = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if key in found and not wanted.extras:
            continue
        try:
            found[key] = distribution(wanted.name).version
        except PackageNotFoundError:
            continue
        installed(wanted.name, frozenset({"", *wanted.extras}), found)


def main() -> int:
    """Write the file; with `--check`, only return 1 if it differs."""
    found: dict[str, str] = {}
    installed("synrepl", frozenset({"", "test", "docs"}), found)
    for name in ("synrepl", "pip", "setuptools", "wheel"):
        found.pop(name, None)  # not pinned: these build and install packages
    python = ".".join(map(str, sys.version_info[:2]))
    head = f"# What CI ran on Python {python}: pip install --constraint constraints.txt synrepl\n"
    text = head + "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))
    if "--check" in sys.argv[1:]:
        return FILE.read_text("utf-8") != text
    FILE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
