"""Packages of Synapse's releases, unpacked and not installed, beside the environments of scripts/interop."""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.interop.harness import peer_python

MISSING = {"1.92": "1.92.1", "1.96": "1.96.1"}
"""Releases of which the first patch is the first package."""


def package(minor: str) -> Path:
    """The folder of the unpacked package of a minor release. It is fetched with pip, once."""
    release = MISSING.get(minor, f"{minor}.0")
    folder = peer_python("legacy").parents[2] / "packages" / release
    if not folder.exists():
        with tempfile.TemporaryDirectory() as place:
            _unpack(_fetch(release, Path(place)), folder)
    return folder


def _fetch(release: str, place: Path) -> Path:
    wanted = ["download", "--quiet", "--no-deps", "--dest", str(place), f"matrix-synapse=={release}"]
    # Before 1.17 there are source archives alone, which old tools alone can read.
    only = ["--no-binary", "matrix-synapse", "--no-build-isolation"]
    for python, how in ((sys.executable, ["--only-binary", ":all:"]), (peer_python("legacy"), only)):
        subprocess.run([python, "-m", "pip", *wanted, *how], check=False, capture_output=True)
        if found := list(place.iterdir()):
            return found[0]
    raise FileNotFoundError(f"pip has no package of matrix-synapse {release} for this machine")


def _unpack(archive: Path, folder: Path) -> None:
    made = archive.parent / "unpacked"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(made)
    else:
        with tarfile.open(archive) as source:
            source.extractall(made, filter="data")
        (made,) = made.iterdir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made, folder)
