"""Recording: a load runs under the recorder, and gives its journal.

Needs Linux and the wheel ``ziglang``, which brings a compiler for `recorder.c`. To record a journal that a
test keeps::

    python -m tests.power.recording MODULE:CLASS FILE.xz
"""

import hashlib
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.crash.scenarios import named
from tests.power.cuts import memory
from tests.power.disk import Choice, Disk, State
from tests.power.journal import MAPPED, Journal, Record

__all__ = ["FOLDER", "JOURNAL", "record", "recorder"]

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = Path(__file__).with_name("recorder.c")
FOLDER: Final = "POWER_FOLDER"
JOURNAL: Final = "POWER_JOURNAL"


def recorder() -> Path:
    """Return the library to be preloaded, compiled if it is missing."""
    source = SOURCE.read_bytes()
    library = ROOT / "build" / f"recorder-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}")
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            "x86_64-linux-gnu.2.17",
            "-O1",
            "-fPIC",
            "-shared",
        ]
        subprocess.run([*command, "-o", made, SOURCE, "-ldl"], check=True, cwd=ROOT)
        made.replace(library)
    return library


def record(
    load: str, folder: Path, journal: Path, variables: Mapping[str, str] | None = None
) -> list[Record]:
    """Run a load, ``module:class``, in the folder, and return the records of its journal.

    Raises ValueError if the journal does not lead to what is in the folder: something was not seen.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scenario = named(load, str(folder))
    scenario.prepare()
    written = Journal(journal)
    written.begin(folder)
    # Some loads have processes of another user.
    journal.chmod(0o666)
    environment = {
        **os.environ,
        **(variables or {}),
        "LD_PRELOAD": str(recorder()),
        FOLDER: str(folder),
        JOURNAL: str(journal),
    }
    subprocess.run([sys.executable, "-m", "tests.power.load", load], check=True, cwd=ROOT, env=environment)
    records = written.records()
    if unlike := differences(Disk(records).state(Choice("everything", 0)), folder):
        raise ValueError(f"the recorder has not seen all that was done to {', '.join(unlike[:10])}")
    return records


def differences(state: State, folder: Path) -> list[str]:
    """Return the names that are not in the folder as this state has them."""
    there = {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_dir() or path.is_file()
    }
    names = sorted(name for name in {*state, *there} if not name.endswith(MAPPED))
    return [name for name in names if state.get(name, b"?") != there.get(name, b"?")]


def main(load: str, kept: Path) -> None:
    """Record a load, and keep its journal."""
    home = memory()
    try:
        record(load, home / "load", home / "journal")
        kept.write_bytes(lzma.compress((home / "journal").read_bytes(), preset=9))
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
