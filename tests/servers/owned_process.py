"""Server processes that end with the program that started them."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

__all__ = ["OwnServer", "OwnedProcess"]

STOP_SECONDS: Final = 60.0

WATCH: Final = """
if read -r told; then exit 0; fi
kill -"$3" "$1"
tries=0
while kill -0 "$1" && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -KILL "$1"
[ -z "$2" ] || rm -rf "$2"
"""
"""Ends the server and removes its directory when the program that started it went without a word."""


class OwnedProcess:
    """A process in a session of its own, with its output in `log`.

    If this program dies, a watchdog sends `signal` to the process, kills it, and deletes the directory
    `removes`, if given. `started` holds further arguments of `subprocess.Popen`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        removes: Path | None = None,
        signal: str = "KILL",
        **started: Any,
    ) -> None:
        with log.open("ab") as words:
            # A session of its own: Ctrl-C must reach this program first.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                **{"cwd": "/", "start_new_session": True, **started},
            )
        nothing = "" if removes is None else str(removes)
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", WATCH, "sh", str(self.process.pid), nothing, signal],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def ended(self) -> None:
        """End the watchdog: the process has ended in order."""
        with suppress(BrokenPipeError):
            self._watch.communicate(b"bye\n", STOP_SECONDS)


class OwnServer:
    """Base class of private servers: a context manager with the server's process id and output.

    `log_file` receives the output.
    """

    def __init__(self, log_file: Path) -> None:
        self._log = log_file
        self._watched: OwnedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.remove()

    @property
    def pid(self) -> int | None:
        """The id of the main process; None while the server does not run."""
        return self._watched.pid if self._watched is not None else None

    @property
    def log(self) -> str:
        """The output of the server."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start the server, and return once it answers. Idempotent."""
        raise NotImplementedError

    def remove(self) -> None:
        """Stop the server, and delete its files. Idempotent."""
        raise NotImplementedError

    def _ended(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.ended()
