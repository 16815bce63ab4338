"""A PostgreSQL of one's own, for tests and measurements: started when asked, gone when the program is.

The machine's PostgreSQL is used if there is one, else the one in the `pgserver` wheel. It listens on a UNIX
socket in a directory of its own, and nowhere else.
"""

import atexit
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

from synrepl.testing.owned_process import OwnedProcess, OwnServer

__all__ = ["PostgresServer", "find_binaries"]

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
STEP_SECONDS: Final = 0.02
USER: Final = "postgres"
"""The administrator of the server, not of the machine."""


def find_binaries() -> list[Path]:
    """Every directory with the programs of a PostgreSQL, the best first: the machine's, the wheel's."""
    found = []
    on_path = shutil.which("postgres")
    if on_path is not None and shutil.which("initdb") is not None:
        found.append(Path(on_path).resolve().parent)
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    found += sorted(debian, key=lambda path: _number(path.parent.name), reverse=True)
    wheel = find_spec("pgserver")
    for position in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        found.append(Path(position) / "pginstall" / "bin")
    return [
        path for path in dict.fromkeys(found) if (path / "postgres").exists() and (path / "initdb").exists()
    ]


class PostgresServer(OwnServer):
    """A PostgreSQL server whose data are in `directory`, made there when they are missing.

    Without a directory they are in a temporary one. Unless `durable`, it does not sync: faster, and a
    killed server loses nothing by that, only a power cut would. PostgreSQL refuses to run as root; root runs
    it as another user, who must be able to reach `directory`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        binaries: str | os.PathLike[str] | None = None,
        durable: bool = False,
    ) -> None:
        self._binaries = Path(binaries) if binaries is not None else _first(find_binaries())
        self._durable = durable
        self._account = _account()
        # Paths of sockets may have some 100 bytes only, which the usual temporary directory can exceed.
        short = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108  # mkdtemp makes a private directory
        self._home = Path(tempfile.mkdtemp(prefix="synrepl-pg-", dir=short))
        self._data = Path(directory).absolute() if directory is not None else self._home / "data"
        super().__init__(self._home / "log")
        self._numbers = count(1)
        self._is_prepared = False
        atexit.register(self.remove)

    @property
    def url(self) -> str:
        """The database that is always there."""
        return self._url("postgres")

    def start(self) -> None:
        """Start it, and return once it can be connected to. Harmless when it runs."""
        if self._watched is not None:
            return
        self._prepare()
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._home),
            "shared_buffers": "32MB",
            "max_connections": "60",
            "fsync": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
            "logging_collector": "off",
        }
        command = [str(self._binaries / "postgres"), "-D", str(self._data)]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._watched = OwnedProcess(
            command, log=self._log, removes=self._home, signal="QUIT", **self._as_account()
        )
        try:
            self._wait_for_start()
        except BaseException:
            self.kill()
            raise

    def stop(self, mode: str = "fast") -> None:
        """Stop it: "fast" ends all connections in order, "immediate" as if it had crashed.

        Harmless when it does not run.
        """
        if self._watched is None:
            return
        self._watched.process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        try:
            self._watched.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._ended()

    def kill(self) -> None:
        """End all its processes at once, as a crash of the machine would. Harmless when it does not run."""
        if self._watched is None:
            return
        # Stopped first, so that it makes no more children while they are looked for.
        with suppress(ProcessLookupError):
            self._watched.process.send_signal(signal.SIGSTOP)
        children = [pid for pid, parent, _ in _processes() if parent == self._watched.pid]
        for pid in [self._watched.pid, *children]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._watched.process.wait(STOP_SECONDS)
        # As long as one of them lives, a new server would not take the data.
        until = time.monotonic() + STOP_SECONDS
        while time.monotonic() < until:
            if not {pid for pid, _, state in _processes() if state != "Z"} & set(children):
                break
            time.sleep(STEP_SECONDS)
        self._ended()

    def restart(self, mode: str = "fast") -> None:
        """Stop it, and start it again."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop it for good, and remove what it left in temporary directories. Harmless when repeated."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self._home, ignore_errors=True)
            atexit.unregister(self.remove)

    def new_database(self) -> str:
        """Make an empty database, and give its URL."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Do something as the server's administrator, on a connection of its own."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as database:
            done = database.execute(statement.encode())
            return done.fetchall() if done.description is not None else []

    # Making it

    def _prepare(self) -> None:
        if self._is_prepared:
            return
        if self._account is not None:
            os.chown(self._home, *self._account)
        if not self._can_run():
            self._binaries = self._copied()
        if not (self._data / "PG_VERSION").exists():
            self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._account is not None:
                os.chown(self._data, *self._account)
            made = subprocess.run(
                [
                    *(str(self._binaries / "initdb"), "-D", str(self._data), "-U", USER),
                    *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                **self._as_account(),
            )
            if made.returncode != 0:
                raise RuntimeError(f"initdb failed: {made.stdout.decode(errors='replace')}")
        self._is_prepared = True

    def _can_run(self) -> bool:
        """Whether the user that runs the server can reach its programs."""
        try:
            return all(
                subprocess.run(
                    [str(self._binaries / program), "--version"],
                    capture_output=True,
                    check=False,
                    **self._as_account(),
                ).returncode
                == 0
                for program in ("postgres", "initdb")
            )
        except PermissionError:
            return False

    def _copied(self) -> Path:
        """A copy of the programs where that user can reach them.

        The programs of the wheel look for libraries beside the wheel's directory, so that goes along.
        """
        top = self._home / "programs"
        install = top / "pgserver" / "pginstall"
        shutil.copytree(self._binaries.parent, install)
        libraries = self._binaries.parents[2] / "pgserver.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, top / "pgserver.libs")
        for path in (top, *top.rglob("*")):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        return install / "bin"

    def _as_account(self) -> dict[str, Any]:
        """How its programs are started."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        # The directory we are in may be closed to that user.
        started: dict[str, Any] = {"cwd": "/", "start_new_session": True, "env": environment}
        if self._account is not None:
            user, group = self._account
            started |= {"user": user, "group": group, "extra_groups": []}
            environment["HOME"] = str(self._home)
        return started

    def _wait_for_start(self) -> None:
        import psycopg

        assert self._watched is not None
        until = time.monotonic() + START_SECONDS
        while True:
            if self._watched.process.poll() is not None:
                raise RuntimeError(f"the server ended at once: {self.log[-2000:]}")
            try:
                psycopg.connect(self.url, connect_timeout=10).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > until:
                    raise RuntimeError(f"the server does not answer: {error}; {self.log[-2000:]}") from error
                time.sleep(STEP_SECONDS)
            else:
                return

    def _url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self._home}"


def _account() -> tuple[int, int] | None:
    """Who runs the server, when we are root; None when we do ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise RuntimeError("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _first(found: list[Path]) -> Path:
    if not found:
        raise RuntimeError("there is no PostgreSQL: install one, or the wheel pgserver")
    return found[0]


def _processes() -> Iterator[tuple[int, int, str]]:
    """Every process: its id, its parent's, its state."""
    if Path("/proc/self/stat").exists():
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # The name in brackets may hold anything.
                pid, _, rest = re.split(r" \((.*)\) ", path.read_text(errors="replace"), flags=re.DOTALL)
                yield int(pid), int(rest.split()[1]), rest.split()[0]
        return
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        number, parent, state = line.split()
        yield int(number), int(parent), state[0]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
