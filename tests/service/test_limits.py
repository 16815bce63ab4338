"""At the limits of the machine a daemon says so, and goes on or ends: never alive and mute."""

import http.client
import json
import resource
import signal
import socket
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.service.processes import Daemon, Process

MIB = 1024 * 1024


def ask(daemon: Daemon, method: str, path: str, body: bytes | None = None) -> int:
    """The status of an answer on a connection of its own; 0 if there is none."""
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def greeting(stack: ExitStack, address: str, request: bytes = b"") -> bytes:
    """The first line on a connection that stays open: once read, the daemon has taken or rejected it."""
    host, port = address.split(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
    connection.sendall(request)
    return stack.enter_context(connection.makefile("rb")).readline()


def test_without_memory_for_a_body_the_daemon_goes_on_or_ends(tmp_path: Path) -> None:
    """It lived on and answered nobody, not even at /readyz, so that no supervisor saw anything."""
    row = [f"@{'a' * 20_000}:hs.example"]
    body = json.dumps({"facts": [[row]] * (60 * MIB // len(json.dumps([[row]])))}).encode()
    with Daemon(tmp_path) as daemon:
        assert ask(daemon, "GET", "/readyz") == 200
        used = 1024 * int(
            next(
                line.split()[1]
                for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
                if line.startswith("VmSize")
            )
        )
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (used + 50 * MIB, resource.RLIM_INFINITY))
        answers = [ask(daemon, "POST", "/v1/streams/push_rules/facts", body) for _ in range(3)]

        assert 200 not in answers
        if ask(daemon, "GET", "/readyz") == 200:
            daemon.wait_for("not enough memory")
            resource.prlimit(daemon.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            assert daemon.wait() == 1
            daemon.wait_for("out of memory: the daemon exits")


def test_files_can_be_opened_when_no_connection_can(tmp_path: Path) -> None:
    """Modules, threads and files are opened late: connections leave them descriptors, and are told why."""
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path, limit=96))
        kept = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
        kept.request("GET", "/livez")
        kept.getresponse().read()
        http_address = daemon.url.removeprefix("http://")
        lines = [greeting(stack, daemon.follow) for _ in range(60)]
        assert {b"SERVER": 16, b"ERROR": 44} == Counter(line.split()[0] for line in lines)
        asking = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        answers = [greeting(stack, http_address, asking) for _ in range(15)]
        answers += [greeting(stack, http_address) for _ in range(45)]
        assert {b"200": 15, b"503": 45} == Counter(line.split()[1] for line in answers)

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
        kept = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
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
        at = next((at for at, line in enumerate(daemon.lines) if "Traceback" in line), None)
        assert at is None, "\n".join(daemon.lines[at - 1 :])


def test_a_file_at_the_limit_of_its_size_is_no_failed_disk(tmp_path: Path) -> None:
    """The operator who reads that the disk failed looks for another one."""
    body = json.dumps({"facts": [[["@ada:hs.example"]]] * 1_000}).encode()
    with Daemon(tmp_path) as daemon:
        assert ask(daemon, "POST", "/v1/streams/push_rules/facts", body) == 200
        size = (tmp_path / "synrepl.db-wal").stat().st_size
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v1/streams/push_rules/facts", body)

        answer = connection.getresponse()

        assert answer.status == 503
        assert "a file has reached the size limit of this process" in json.loads(answer.read())["message"]
        connection.close()
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


FAILING = """
import os, signal, threading
from synrepl.daemon.process import _handle_fatal_errors

class Broken:
    def __del__(self):
        raise MemoryError

def fail():
    raise MemoryError

_handle_fatal_errors()
print("begins", flush=True)
{statement}
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "statement",
    [
        "fail()",
        "threading.Thread(target=fail).start()",
        "broken = Broken(); del broken",
        "from twisted.internet.defer import fail as failed; failed(MemoryError()); import gc; gc.collect()",
        "from twisted.python import log; log.callWithLogger(log.Logger(), fail)",
    ],
)
def test_a_memory_error_that_nothing_handles_ends_the_process_with_a_line(
    statement: str, tmp_path: Path
) -> None:
    """Once it was code 1 and no line: the log's own line needs memory."""
    with Process("-c", FAILING.format(statement=statement), cwd=tmp_path) as process:
        assert process.wait() == 1
        assert [line for line in process.lines if line.startswith("out of memory: the daemon exits")]


def test_a_crash_leaves_the_stack(tmp_path: Path) -> None:
    """Without memory a C library may follow a null pointer; once that left nothing at all."""
    statement = "os.kill(os.getpid(), signal.SIGSEGV)"
    with Process("-c", FAILING.format(statement=statement), cwd=tmp_path) as process:
        assert process.wait() == -signal.SIGSEGV
        process.wait_for("Fatal Python error: Segmentation fault")
