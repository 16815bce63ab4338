"""A private PostgreSQL server for tests and benchmarks. It ends with the program.

It uses the machine's PostgreSQL, or else the one of the `pgserver` wheel. It listens on a UNIX socket in a
directory of its own only.
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

from tests.servers.owned_process import OwnedProcess, OwnServer

__all__ = ["PostgresServer", "find_binaries"]

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
STEP_SECONDS: Final = 0.02
USER: Final = "postgres"
"""The administrator of the server, not of the machine."""


def find_binaries() -> list[Path]:
    """The directories with PostgreSQL programs: those of this machine, then that of the wheel."""
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
    """A PostgreSQL server with its data in `directory`, which is created if it is missing.

    The default is a temporary directory. With `primary` it begins as a standby of that server, which must
    run by then. Without `durable` the server does not fsync: a kill loses nothing, a power failure may.
    PostgreSQL refuses to run as root; root starts it as another user, who must be able to reach `directory`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        binaries: str | os.PathLike[str] | None = None,
        durable: bool = False,
        primary: "PostgresServer | None" = None,
    ) -> None:
        if binaries is None:
            binaries = _first(find_binaries()) if primary is None else primary._binaries
        self._binaries: Path = Path(binaries)
        self._durable = durable
        self._primary = primary
        self._account = _account()
        # A socket path has at most about 100 bytes; a temporary directory can be longer.
        short = "/tmp" if Path("/tmp").is_dir() else None  # mkdtemp makes a private directory
        self._home = Path(tempfile.mkdtemp(prefix="synrepl-pg-", dir=short))
        self._data = Path(directory).absolute() if directory is not None else self._home / "data"
        super().__init__(self._home / "log")
        self._numbers = count(1)
        self._is_prepared = False
        atexit.register(self.remove)

    @property
    def url(self) -> str:
        """The URL of the default database."""
        return self._url("postgres")

    def start(self) -> None:
        """Start the server, and return once it accepts connections. Idempotent."""
        if self._watched is not None:
            return
        self._prepare()
        if self._primary is not None:
            (self._data / "standby.signal").touch()
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._home),
            "shared_buffers": "32MB",
            "max_connections": "60",
            "fsync": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
            "logging_collector": "off",
            "primary_conninfo": "" if self._primary is None else self._primary.url,
        }
        command = [str(self._binaries / "postgres"), "-D", str(self._data)]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._watched = OwnedProcess(
            command, log=self._log, removes=self._home, signal="QUIT", **self.as_account()
        )
        try:
            self._wait_for_start()
        except BaseException:
            self.kill()
            raise

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: "fast" closes connections in order, "immediate" as a crash does.

        Idempotent.
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
        """Kill all processes of the server, as a crash of the machine does. Idempotent."""
        if self._watched is None:
            return
        # Suspended first, so that it forks no children while they are listed.
        with suppress(ProcessLookupError):
            self._watched.process.send_signal(signal.SIGSTOP)
        children = [pid for pid, parent, _ in _processes() if parent == self._watched.pid]
        for pid in [self._watched.pid, *children]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._watched.process.wait(STOP_SECONDS)
        # A new server refuses the data directory while one of them lives.
        until = time.monotonic() + STOP_SECONDS
        while time.monotonic() < until:
            if not {pid for pid, _, state in _processes() if state != "Z"} & set(children):
                break
            time.sleep(STEP_SECONDS)
        self._ended()

    def restart(self, mode: str = "fast") -> None:
        """Stop the server and start it again."""
        self.stop(mode)
        self.start()

    def follow(self, primary: "PostgresServer") -> None:
        """Begin to be a standby of that server with the next start, which must have all that this one has."""
        self._primary = primary

    def promote(self) -> None:
        """Turn this standby into a primary, and return once it is one."""
        self._primary = None
        assert [(True,)] == self.execute("SELECT pg_promote(true, 60)")

    def wait_for(self, primary: "PostgresServer") -> None:
        """Return once this standby has all that its primary has written."""
        [(end,)] = primary.execute("SELECT pg_current_wal_lsn()")
        until = time.monotonic() + START_SECONDS
        while self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") != [(True,)]:
            if time.monotonic() > until:
                raise RuntimeError(f"the standby does not follow: {self.log[-2000:]}")
            time.sleep(STEP_SECONDS)

    def url_of(self, name: str) -> str:
        """The URL of the database of this name."""
        return self._url(name)

    def remove(self) -> None:
        """Stop the server, and delete its temporary directories. Idempotent."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self._home, ignore_errors=True)
            atexit.unregister(self.remove)

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement as the administrator, over a new connection."""
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
            command = [
                *(str(self._binaries / "initdb"), "-D", str(self._data), "-U", USER),
                *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ]
            if self._primary is not None:
                command = [
                    *(str(self._binaries / "pg_basebackup"), "-D", str(self._data), "-d", self._primary.url),
                    *("--checkpoint=fast", "--wal-method=stream", "--no-sync"),
                ]
            made = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                **self.as_account(),
            )
            if made.returncode != 0:
                raise RuntimeError(f"{Path(command[0]).name} failed: {made.stdout.decode(errors='replace')}")
        self._is_prepared = True

    def _can_run(self) -> bool:
        """Whether the server's user can execute its programs."""
        try:
            return all(
                subprocess.run(
                    [str(self._binaries / program), "--version"],
                    capture_output=True,
                    check=False,
                    **self.as_account(),
                ).returncode
                == 0
                for program in ("postgres", "initdb")
            )
        except PermissionError:
            return False

    def _copied(self) -> Path:
        """Copy the programs to a directory that the server's user can reach.

        The wheel's programs load libraries next to the wheel's directory, which is copied too.
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

    def as_account(self) -> dict[str, Any]:
        """The prefix of commands that run as the server's user."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        # The working directory may not be readable for that user.
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
    """The user that runs the server if this program is root; None otherwise."""
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
    """The id, the parent's id and the state of every process."""
    if Path("/proc/self/stat").exists():
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # The name in brackets may contain spaces and brackets.
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
