"""At the limits of the machine a daemon says so, and goes on or ends: never alive and mute."""

import http.client
import json
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.service.processes import Daemon

MIB = 1024 * 1024


def ask(daemon: Daemon, method: str, path: str, body: bytes | None = None) -> int:
    """The status of an answer on a connection of its own; 0 if there is none."""
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def is_over(daemon: Daemon) -> bool:
    """Whether the process has ended."""
    return daemon.code is not None


def test_without_memory_for_a_body_the_daemon_goes_on_or_ends(tmp_path: Path) -> None:
    """It lived on and answered nobody, not even at /readyz, so that no supervisor saw anything."""
    row = ["@ada:hs.example"]
    body = json.dumps({"facts": [[row]] * (40 * MIB // len(json.dumps([[row]])))}).encode()
    with Daemon(tmp_path) as daemon:
        assert ask(daemon, "GET", "/readyz") == 200
        used = 1024 * int(
            next(
                line.split()[1]
                for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
                if line.startswith("VmSize")
            )
        )
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (used + 100 * MIB, resource.RLIM_INFINITY))
        answers = [ask(daemon, "POST", "/v1/streams/push_rules/facts", body) for _ in range(3)]

        assert 200 not in answers
        if is_over(daemon):
            assert daemon.code == 1
            daemon.wait_for("out of memory: the daemon exits")
        else:
            assert ask(daemon, "GET", "/readyz") == 200
            daemon.wait_for("not enough memory")
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_files_can_be_opened_when_no_connection_can(tmp_path: Path) -> None:
    """Modules, threads and files are opened late: connections leave them descriptors, and are told why."""
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path, limit=96))
        kept = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=20)
        kept.request("GET", "/livez")
        kept.getresponse().read()
        for address in (daemon.follow, daemon.url.removeprefix("http://")):
            host, port = address.split(":")
            for _ in range(60):
                with suppress(OSError):
                    stack.enter_context(socket.create_connection((host, int(port)), timeout=5))

        for path in ("/livez", "/status", "/v1/changelog", "/metrics"):
            kept.request("GET", path)
            answer = kept.getresponse()
            answer.read()
            assert answer.status == 200, path
        kept.close()
        daemon.wait_for("connections, its limit", times=2)


def test_at_the_limit_of_descriptors_it_says_so_and_goes_on(tmp_path: Path) -> None:
    """Connections are refused before files are: who is connected is answered in every way."""
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path))
        kept = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=20)
        kept.request("GET", "/livez")
        kept.getresponse().read()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (64, 64))
        host, port = daemon.follow.split(":")
        for _ in range(120):
            with suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))

        for path in ("/livez", "/status", "/v1/changelog", "/metrics"):
            kept.request("GET", path)
            answer = kept.getresponse()
            answer.read()
            assert answer.status in (200, 503), (path, answer.status)
        kept.close()
        assert not any("Traceback" in line for line in daemon.lines), daemon.lines
