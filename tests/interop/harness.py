"""Starts the programs of the interop tests and waits for what they report. Nothing here sleeps and hopes."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.servers.ports import free_port

PEERS = Path(__file__).parent / "peers"
PATIENCE_SECONDS = 30.0  # importing Synapse alone can take 20

Event = dict[str, Any]


def peer_python(release: str) -> Path:
    """The interpreter of the environment in which scripts/interop put this release."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    peers = os.environ.get("SYNREPL_PEERS") or str(Path(cache) / "synrepl-peers")
    return Path(peers) / f"synapse-{release}" / "bin" / "python"


class Program:
    """A process whose stdout is one JSON object a line; the field `kind` of each says what happened."""

    def __init__(self, argv: Sequence[str | Path], *, kind: str = "event", cwd: Path | None = None) -> None:
        self.kind = kind
        self.events: list[Event] = []
        self._ended = False
        self._changed = threading.Condition()
        self._errors: list[str] = []
        self.process = subprocess.Popen(
            [str(arg) for arg in argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        self._threads = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self._errors.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)

    def say(self, order: str | Event) -> None:
        """Send a line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write((order if isinstance(order, str) else json.dumps(order)) + "\n")
        self.process.stdin.flush()

    def mark(self) -> int:
        """Here: `expect` and `all` can be told to look only at what happens from now on."""
        with self._changed:
            return len(self.events)

    def _matches(self, event: Event, what: str, fields: Event) -> bool:
        return event.get(self.kind) == what and all(
            event.get(name) == value for name, value in fields.items()
        )

    def all(self, what: str, after: int = 0, **fields: Any) -> list[Event]:
        """What it has reported so far."""
        with self._changed:
            return [event for event in self.events[after:] if self._matches(event, what, fields)]

    def expect(self, what: str, after: int = 0, seconds: float = PATIENCE_SECONDS, **fields: Any) -> Event:
        """The first such event, or the failure of the test when it does not come."""
        return self.expect_many(what, 1, after, seconds, **fields)[0]

    def expect_many(
        self, what: str, count: int, after: int = 0, seconds: float = PATIENCE_SECONDS, **fields: Any
    ) -> list[Event]:
        """The first `count` such events."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                found = [event for event in self.events[after:] if self._matches(event, what, fields)]
                if len(found) >= count:
                    return found[:count]
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    why = "it ended" if self._ended else f"not within {seconds:g} s"
                    raise AssertionError(
                        f"{len(found)} of {count} {what!r} {fields or ''}: {why}.\n"
                        f"Last events: {json.dumps(self.events[-8:], indent=1)}\n"
                        f"Last errors: {''.join(self._errors[-40:])}"
                    )
                self._changed.wait(left)

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return "".join(self._errors)

    def kill(self) -> None:
        """kill -9: no goodbye, nothing flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As an operator stops it."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(PATIENCE_SECONDS)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def peer_client(release: str, port: int, *args: str, server_name: str = "interop.test") -> Program:
    """The worker's end of a real release, connected (or connecting) to this port."""
    program = PEERS / "peer_client.py"
    target = f"127.0.0.1:{port}"
    return Program([peer_python(release), program, target, "--server-name", server_name, *args])


class Cable:
    """Between a follower and a server: passes bytes on, and can be cut in the middle of a line."""

    def __init__(self, port: int) -> None:
        self._far_port = port
        self._near = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._near.getsockname()[1]
        self._cut_after = b""
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)  # wakes up who waits in accept
        self._near.close()
        self.cut()

    def cut(self) -> None:
        """Both ends see the connection end. The next one is passed on as ever."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut_after(self, octets: bytes) -> None:
        """Cut once, right after the server has said this; what it says next is lost on the way."""
        self._cut_after = octets

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._near.accept()
                far = socket.create_connection(("127.0.0.1", self._far_port))
            except OSError:
                return  # closed, or there is no server
            with self._lock:
                self._ends += [near, far]
            threading.Thread(target=self._pass_on, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_from_server: bool) -> None:
        before = b""
        with contextlib.suppress(OSError):
            while octets := source.recv(1 << 16):
                said, wanted = before + octets, self._cut_after
                if is_from_server and wanted and (position := said.find(wanted)) >= 0:
                    self._cut_after = b""
                    sink.sendall(octets[: position + len(wanted) - len(before)])
                    break
                sink.sendall(octets)
                before = said[1 - len(wanted) :] if len(wanted) > 1 else b""
        self.cut()


class PeerServer(Program):
    """The master's end of a real release, listening; a current one also where missed rows are fetched."""

    def __init__(
        self,
        release: str,
        *,
        port: int = 0,
        http_port: int = 0,
        token: int = 1,
        server_name: str = "interop.test",
    ) -> None:
        options = {"--server-name": server_name, "--port": port, "--http-port": http_port, "--token": token}
        words = [str(word) for option in options.items() for word in option]
        super().__init__([peer_python(release), PEERS / "peer_server.py", *words])
        listening = self.expect("listening")
        self.release = release
        self.port: int = listening["port"]
        self.http_port: int | None = listening["http_port"]
        self.streams: set[str] = set(listening["streams"])


def our_program(name: str) -> str:
    """A console program of the environment that runs the tests."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    assert found is not None, f"{name} is not installed beside {sys.executable}"
    return found


def tail(port: int, *args: str, server_name: str = "interop.test") -> Program:
    """Our follower; its events are told apart by `type`."""
    argv = [our_program("synrepl"), "tail", f"tcp:127.0.0.1:{port}", "--server-name", server_name, *args]
    return Program(argv, kind="type")


def worker(port: int, dialect: str) -> Program:
    """A worker made with our library; stdin takes the lines it is to send."""
    argv = [sys.executable, "-m", "tests.interop.worker", str(port), dialect]
    return Program(argv, kind="type", cwd=PEERS.parents[2])


class Daemon:
    """Our daemon. It keeps its ports and its log through `kill` and `start`.

    If another program takes one of its ports before it has ever listened, it starts again with others.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        server_name: str = "interop.test",
        http_port: int | None = None,
    ) -> None:
        self._may_choose_http_port = http_port is None
        self._may_choose_ports = True
        self.port = free_port()
        self.http_port = free_port() if http_port is None else http_port
        self.secret: str | None = None
        """What it asks for on HTTP, if it does."""
        self.log_file = folder / "twistd.log"
        self._folder = folder
        self._argv = [
            our_program("twistd"),
            "--nodaemon",
            "--pidfile=",
            "synrepl",
            "--server-name",
            server_name,
            "--database",
            f"sqlite:{folder / 'synrepl.db'}",
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def start(self, *, answers: str = "/readyz") -> None:
        """Start it, and wait until it is ready (or answers this path, as one does that is not)."""
        for left in reversed(range(5)):
            try:
                self._start(answers)
            except AssertionError as error:
                if not left or not self._may_choose_ports or "Address already in use" not in str(error):
                    raise
                self.port = free_port()
                if self._may_choose_http_port:
                    self.http_port = free_port()
            else:
                break
        # Others reconnect to these.
        self._may_choose_ports = False

    def _start(self, answers: str) -> None:
        listening = [
            "--listen",
            f"tcp:{self.port}:interface=127.0.0.1",
            "--http",
            f"tcp:{self.http_port}:interface=127.0.0.1",
        ]
        said = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._argv, *listening], cwd=self._folder, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(OSError):  # refused until it listens, 503 until it is ready
                with urllib.request.urlopen(self.url + answers, timeout=5):
                    return
            try:  # the pause between two looks is the wait for its possible end
                status = self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                status = None
            text = self.log_file.read_bytes()[said:].decode(errors="replace")
            assert status is None, f"the daemon ended with {status}:\n{text}"
            assert time.monotonic() < deadline, f"the daemon is not ready:\n{text}"

    def kill(self) -> None:
        """kill -9: what it has answered must survive this."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def append(self, stream: str, *facts: Sequence[Any]) -> Event:
        """Append facts, each a list of rows; gives the answer."""
        headers = {"Content-Type": "application/json"}
        if self.secret is not None:
            headers["Authorization"] = f"Bearer {self.secret}"
        request = urllib.request.Request(
            f"{self.url}/v1/streams/{stream}/facts",
            data=json.dumps({"facts": facts}).encode(),
            headers=headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                receipt: Event = json.load(answer)
                return receipt
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{stream} {facts}: {error.code} {error.read().decode()}") from error


def asked_for() -> Iterator[str]:
    """The releases over TCP that scripts/interop was asked to run with. The newest one speaks none of it."""
    asked = os.environ.get("SYNREPL_INTEROP", "legacy current").split()
    yield from (release for release in asked if release in ("legacy", "current"))
