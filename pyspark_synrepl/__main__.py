"""Writes a zip of synrepl for ``spark-submit --py-files``: ``python -m pyspark_synrepl synrepl.zip``."""

import sys
import zipfile
from pathlib import Path
from typing import Final

PACKAGES: Final = ("pyspark_synrepl", "synrepl")


def write_zip(target: Path) -> None:
    """Write the modules of all packages, without the compiled ones, which depend on the Python."""
    root = Path(__file__).parent.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as found:
        for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
            found.write(path, path.relative_to(root).as_posix())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pyspark_synrepl FILE.zip")
    write_zip(Path(sys.argv[1]))
