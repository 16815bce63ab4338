"""Peers that say too much, and read too little: the daemon stays alive, small, and its log short.

Nothing on the line port can be authenticated before something was said, so each of these needs nothing but to
reach the port.
"""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.processes.loading import MIB, NO_HEADERS, PATIENCE_SECONDS, Asker, memory, report
from tests.replicas.processes.replica_line import HttpPipe, Pipe
from tests.service.processes import Daemon

TURN_SECONDS = 0.3
"""How much CPU time the reactor may use in one turn: three times what it takes at most on a machine of its
own, as neighbours take the caches of a processor too. Nobody else is served in a turn, so this is the one
thing that tests judge by time; CPU time, since wall time depends on what else the machine does.
"""

SEND_SECONDS = 3.0
"""How long a socket that may take nothing is tried: the daemon has stopped reading it."""


class Watch:
    """Asks /livez all along, ten times a second, and looks how large the daemon is."""

    def __init__(self, daemon: Daemon) -> None:
        self.slowest = 0.0
        self.largest = self.before = memory(daemon.pid)
        self.trouble: list[str] = []
        self._daemon = daemon
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with Asker(self._daemon.url) as asker:
            while True:
                is_last = self._over.wait(0.1)
                started = time.monotonic()
                try:
                    asker.ask("GET", "/livez")
                except Exception as error:
                    self.trouble.append(repr(error))
                self.slowest = max(self.slowest, time.monotonic() - started)
                self.largest = max(self.largest, memory(self._daemon.pid))
                if is_last:
                    return

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask once more, then no more."""
        self._over.set()
        self._thread.join()

    @property
    def grown(self) -> float:
        """By how many MiB the daemon grew, at most."""
        return (self.largest - self.before) / MIB


@contextmanager
def watched(daemon: Daemon, attack: str, *, grows_mib: float) -> Iterator[None]:
    """The daemon answers meanwhile, no turn of it is long, and it grows by less than this."""
    # What it needs at the first connection and answer is no matter of the attack.
    with Asker(daemon.url) as asker, connected(daemon) as first:
        asker.ask("GET", "/livez")
        send(first, b"REPLICATE\n")
    watch = Watch(daemon)
    watch.start()
    started = time.monotonic()
    try:
        yield
    finally:
        watch.stop()
    turn = longest_turn(daemon)
    report(
        f"{attack}: {time.monotonic() - started:.1f} s, RSS {watch.before / MIB:.0f} ->"
        f" {watch.largest / MIB:.0f} MiB, /livez at worst {watch.slowest:.2f} s,"
        f" longest turn {turn * 1000:.0f} ms"
    )
    assert [] == watch.trouble
    assert turn <= TURN_SECONDS
    assert watch.grown < grows_mib


def longest_turn(daemon: Daemon, headers: Mapping[str, str] = NO_HEADERS) -> float:
    """The most CPU time of a turn of the reactor since the daemon was ready, in seconds."""

    def value(name: str) -> float:
        found = re.search(rf"^synrepl_reactor_turn_{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, text
        return float(found[1])

    with Asker(daemon.url) as asker:
        text = asker.ask("GET", "/metrics", headers=headers).decode()
        before = value("seconds_count")
        # The turn that answers is not in the answer; the next one has it.
        while value("seconds_count") == before:
            text = asker.ask("GET", "/metrics", headers=headers).decode()
    return value("cpu_seconds_max")


def connected(daemon: Daemon) -> socket.socket:
    host, _, port = daemon.follow.rpartition(":")
    made = socket.socket()
    # Small, so that the kernel does not take for the peer what the peer does not read.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    made.settimeout(PATIENCE_SECONDS)
    made.connect((host, int(port)))
    return made


def send(to: Pipe, data: bytes, *, seconds: float = SEND_SECONDS) -> bool:
    """Whether all of it was taken: the daemon did not close, nor stop reading for so long."""
    to.settimeout(seconds)
    try:
        to.sendall(data)
    except (TimeoutError, ConnectionError):
        return False
    return True


def is_taken(to: Pipe, data: bytes) -> bool:
    """The same of what a daemon must take, however busy the machine is."""
    return send(to, data, seconds=PATIENCE_SECONDS)


def said(to: Pipe, text: bytes) -> bool:
    """Whether the daemon says this before it closes."""
    to.settimeout(PATIENCE_SECONDS)
    heard = b""
    try:
        while text not in heard:
            chunk = to.recv(65_536)
            if not chunk:
                return False
            heard = heard[-1_000:] + chunk
    except (TimeoutError, ConnectionError):
        return False
    return True


def answered(to: socket.socket) -> bool:
    """Whether it answers to what was said up to here."""
    return is_taken(to, b"REPLICATE\n") and said(to, b"POSITION")


def flood(daemon: Daemon, stack: ExitStack, lines: Callable[[int], Sequence[str]], connections: int) -> None:
    """Each connection says its lines, and has them taken."""
    for number in range(connections):
        one = stack.enter_context(connected(daemon))
        assert is_taken(one, "".join(f"{line}\n" for line in lines(number)).encode())
        assert answered(one)


def test_made_up_users_stop_nothing(tmp_path: Path) -> None:
    """2.6 MB of them stopped a daemon for 22 seconds."""
    with Daemon(tmp_path) as daemon:
        with watched(daemon, "USER_SYNC, 100 x 1,000 instances", grows_mib=100), ExitStack() as stack:
            flood(
                daemon,
                stack,
                lambda number: [f"USER_SYNC i{number}.{n} @u{number}.{n}:x start 1" for n in range(1_000)],
                100,
            )
        with watched(daemon, "USER_SYNC, 100,000 users of one worker", grows_mib=60), ExitStack() as stack:
            flood(daemon, stack, lambda _: [f"USER_SYNC w1 @v{n}:x start 1" for n in range(100_000)], 1)
        with watched(daemon, "USER_SYNC, 100,000 instances at once", grows_mib=20), connected(daemon) as one:
            send(one, b"".join(b"USER_SYNC x%d @w%d:x start 1\n" % (n, n) for n in range(100_000)))


def test_made_up_federation_senders_stop_nothing(tmp_path: Path) -> None:
    """3.4 MB of them stopped a daemon for 15 seconds, and 2,000 more lines for 3, until it was restarted."""
    with Daemon(tmp_path) as daemon:
        with watched(daemon, "FEDERATION_ACK, 200 x 500 lines", grows_mib=40), ExitStack() as stack:
            flood(
                daemon,
                stack,
                lambda number: [f"FEDERATION_ACK fs{number}.{n % 100} {n}" for n in range(500)],
                200,
            )
        with watched(daemon, "FEDERATION_ACK, 100,000 senders", grows_mib=20), connected(daemon) as one:
            send(one, b"".join(b"FEDERATION_ACK x%d 1\n" % n for n in range(100_000)))
        with watched(daemon, "FEDERATION_ACK, 2,000 lines later", grows_mib=20), ExitStack() as stack:
            flood(daemon, stack, lambda _: [f"FEDERATION_ACK later {n}" for n in range(2_000)], 1)


def test_commands_for_all_stop_nothing(tmp_path: Path) -> None:
    """A few lines in one piece became a hundred thousand messages in a turn of five seconds."""
    with Daemon(tmp_path) as daemon, ExitStack() as stack:
        for _ in range(200):
            assert is_taken(stack.enter_context(connected(daemon)), b"NAME f\nREPLICATE\n")
        one = stack.enter_context(connected(daemon))
        with watched(daemon, "REMOTE_SERVER_UP, 4,000 lines to 200 followers", grows_mib=60):
            assert is_taken(one, b"REMOTE_SERVER_UP x.y\n" * 4_000)
            assert answered(one)


@pytest.mark.parametrize("over_http", [False, True], ids=["tcp", "http"])
def test_digests_that_nobody_reads_cost_nothing(tmp_path: Path, *, over_http: bool) -> None:
    """62 MB of questions made 730 MB, and other reads waited for 23 seconds. Over HTTP the requests with them
    are not answered."""
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        asker.post("push_rules", [[[f"@u{n}:x"]] for n in range(200)])
        asked = b"DIGESTS [" + b",".join(b"%d" % n for n in range(1, 201)) + b"]\n"
        with watched(daemon, "DIGESTS without reading, 6 connections", grows_mib=30), ExitStack() as stack:
            sockets: list[Pipe] = []
            for _ in range(6):
                if over_http:
                    pipe = HttpPipe(daemon.url)
                    sockets.append(stack.enter_context(closing(pipe)))
                else:
                    sockets.append(stack.enter_context(connected(daemon)))
            for number, one in enumerate(sockets):
                greeting = f'HELLO {{"uuid":"u{number}","name":"n","version":3}}\n'
                assert is_taken(one, greeting.encode())
                assert said(one, b"WELCOME")
            threads = [
                threading.Thread(target=send, args=(one, asked * (10 * MIB // len(asked))), daemon=True)
                for one in sockets
            ]
            for thread in threads:
                thread.start()
            asker.ask("GET", "/v1/changelog?since=0")
            for thread in threads:
                thread.join()


@pytest.mark.parametrize(
    "line", [b"REPLICATE\n", b"REPLICATE push_rules 0\n", b"REPLICATE ALL 0\n"], ids=repr
)
def test_replicate_without_reading_costs_nothing(tmp_path: Path, line: bytes) -> None:
    """11 bytes are answered with half a megabyte where there are many writers."""
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        for writer in range(300):
            asker.post("push_rules", [[[f"@u{writer}:x"]]], writer=f"writer{writer}-{'x' * 100}")
        asker.post("push_rules", [[[f"@{n}{'x' * 500}:x"]] for n in range(2_000)])
        name = line.decode().strip()
        with watched(daemon, f"1,000,000 x {name} without reading", grows_mib=30), connected(daemon) as one:
            send(one, line * 1_000_000)


def test_bad_lines_do_not_fill_the_log(tmp_path: Path) -> None:
    """15,425 of them were 15,425 lines."""
    with Daemon(tmp_path) as daemon:
        before = len(daemon.lines)
        with watched(daemon, "20,000 bad lines of 500 connections", grows_mib=20):
            for _ in range(500):
                with connected(daemon) as one:
                    send(one, b"FOO bar\n" * 40)
                    said(one, b"ERROR invalid command: 'FOO'")
        daemon.terminate()
        logged = daemon.lines[before:]

    assert len(logged) < 60, logged[:100]
    assert sum(map(len, logged)) < 16_384, logged
    more = re.findall(r"similar lines dropped in the last minute: (\d+); the last one: c", "\n".join(logged))
    assert sum(map(int, more)) > 400, logged
