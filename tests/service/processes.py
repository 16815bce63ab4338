"""Real processes for tests: waited for by what they print, and ended by their id."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.servers.ports import free_port

__all__ = ["Daemon", "Process"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0
TWISTD = ("-c", "from twisted.scripts.twistd import run; run()", "--nodaemon", "--pidfile=", "synrepl")


class Process:
    """A Python program, and every line it has printed; `limit` is how many file descriptors it may have."""

    def __init__(self, *arguments: str, cwd: Path, limit: int | None = None, close_fds: bool = True) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.lines: list[str] = []
        self._is_over = False
        self._changed = threading.Condition()
        limited = [] if limit is None else ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh"]
        self._process = subprocess.Popen(
            [*limited, sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            close_fds=close_fds,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_until(self, is_enough: Callable[[list[str]], bool]) -> None:
        """Until it has printed enough."""
        with self._changed:
            self._changed.wait_for(lambda: is_enough(self.lines) or self._is_over, PATIENCE_SECONDS)
            assert is_enough(self.lines), self.lines

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until so many lines hold this."""
        self.wait_until(lambda lines: sum(text in line for line in lines) >= times)

    def wait(self) -> int:
        """Until it ends; gives the exit code."""
        code = self._process.wait(PATIENCE_SECONDS)
        self._thread.join(PATIENCE_SECONDS)
        return code

    def terminate(self) -> int:
        """Ask it to end, and wait until it has."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it, now, if it is there."""
        self._process.kill()
        self._process.wait()
        self._thread.join(PATIENCE_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class Daemon(Process):
    """``twistd synrepl`` in a folder, ready, on ports that no other process of tests gets, unless said.

    `program` is what Python runs in place of twistd.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        http_port: int = 0,
        options: tuple[str, ...] = (),
        limit: int | None = None,
        program: tuple[str, ...] = TWISTD,
    ) -> None:
        super().__init__(
            *program,
            "--listen",
            f"tcp:{port or free_port()}:interface=127.0.0.1",
            "--http",
            f"tcp:{http_port or free_port()}:interface=127.0.0.1",
            *options,
            cwd=folder,
            limit=limit,
        )
        try:
            self.wait_for("ready:")
        except BaseException:
            self.kill()
            raise
        self.follow = self._address("followers: listening at tcp:")
        self.url = "http://" + self._address("http: listening at tcp:")

    def _address(self, before: str) -> str:
        line = next(line for line in self.lines if before in line)
        return line.split(before)[1].split(",")[0]

    def __enter__(self) -> Self:
        return self
