"""The frozen release: unpacked from its wheel, and run as it was."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.service.processes import PATIENCE_SECONDS, ROOT, TWISTD, Daemon, Process

HERE: Final = Path(__file__).parent
RELEASE: Final = "26.11.1"
FROZEN: Final = HERE / RELEASE


class OldRelease:
    """The release, unpacked into a folder; it runs with the libraries of this environment."""

    def __init__(self, folder: Path) -> None:
        with zipfile.ZipFile(FROZEN / f"synrepl-{RELEASE}-py3-none-any.whl") as wheel:
            wheel.extractall(folder)
        # Not by PYTHONPATH: the checkout would come first.
        self._first = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.dont_write_bytecode = True; "

    @property
    def twistd(self) -> tuple[str, ...]:
        """What Python runs as ``twistd synrepl`` of the release."""
        start = f"{self._first}from twisted.scripts.twistd import run; run()"
        return "-c", start, "--nodaemon", "--pidfile=", "synrepl"

    @property
    def command(self) -> tuple[str, ...]:
        """What Python runs as the program ``synrepl`` of the release."""
        run = "import runpy; sys.argv[0] = 'synrepl'; runpy.run_module('synrepl', run_name='__main__')"
        return "-c", f"{self._first}{run}"


class Release:
    """One of two releases: the frozen one, or that of the checkout if there is no `old`."""

    def __init__(self, old: OldRelease | None = None) -> None:
        self.name = "this" if old is None else RELEASE
        self._old = old

    def daemon(self, folder: Path, *options: str, port: int = 0, http_port: int = 0) -> Daemon:
        """A daemon of example.org in this folder, which is made."""
        folder.mkdir(exist_ok=True)
        options = ("--server-name", "example.org", *options)
        program = TWISTD if self._old is None else self._old.twistd
        return Daemon(folder, port=port, http_port=http_port, options=options, program=program)

    def start(self, *arguments: str, cwd: Path) -> Process:
        """The program, with these arguments."""
        return Process(*self._command, *arguments, cwd=cwd)

    def run(self, *arguments: str, cwd: Path, stdin: str = "") -> str:
        """What the program prints; it must succeed."""
        done = subprocess.run(
            [sys.executable, *self._command, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def _command(self) -> Sequence[str]:
        return ("-m", "synrepl") if self._old is None else self._old.command
