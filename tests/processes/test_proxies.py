"""A daemon behind real reverse proxies, each with its configuration of contrib/proxies and nothing else."""

import gzip
import hashlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pytest
import redis

from tests.processes.channel import eventually
from tests.servers.ports import free_port
from tests.servers.proxies import PROXIES, Ports, ReverseProxy, found_proxies
from tests.service.processes import Daemon

SECRET: Final = "behind-the-proxies-there-is-a-secret"
AUTHORIZED: Final = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
PATIENCE_SECONDS: Final = 60
"""Less than the time between heartbeats of this module: a proxy that keeps bytes back keeps the fact back."""

LIMIT: Final = 200_000
"""The most bytes of a body."""

NAMES: Final = (
    *(
        "media/plain.txt",
        "media//plain.txt",
        "media/./plain.txt",
        "x/../media/plain.txt",
        "media/%2e%2e/plain.txt",
    ),
    *("media%2fplain.txt", "media%252fplain.txt", "a b+c;d,e.txt", "q?x=1&y#z", "back\\slash", "größe €.txt"),
)
"""Names of files, each with bytes of its own: some proxies take several of them for one."""

APPEND: Final = "/v1/streams/push_rules/facts"
BODY: Final = json.dumps({"facts": [[["@ada:hs.example"]]]}).encode()


class Answer(NamedTuple):
    """What came back; headers by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def code(self) -> str:
        """The error code."""
        found: str = json.loads(self.body)["error"]
        return found


class Place(NamedTuple):
    """An address of the daemon: its own, or that of a proxy."""

    port: int
    ca_file: Path | None = None

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        if self.ca_file is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        trusted = ssl.create_default_context(cafile=str(self.ca_file))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS, context=trusted)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask on a connection of its own. `headers` have _ for -."""
        connection = self.connect()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, AUTHORIZED | given, encode_chunked=True)
            return _read(connection.getresponse())
        finally:
            connection.close()


def _read(response: http.client.HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


def synrepl(folder: Path, *arguments: str, told: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, with this on its standard input."""
    command = [sys.executable, "-m", "synrepl", *arguments]
    return subprocess.run(command, input=told, capture_output=True, text=True, cwd=folder, timeout=60)


class Behind(NamedTuple):
    """A proxy, and the daemon behind it."""

    name: str
    proxy: ReverseProxy
    there: Place
    direct: Place


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """A daemon with a secret, that has files."""
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    resp = free_port()
    options = (
        *("--secret-file", "secret", "--instance-name", "behind", "--redis-writes", "push_rules"),
        *("--resp", f"tcp:{resp}:interface=127.0.0.1", "--max-body-bytes", str(LIMIT)),
    )
    with Daemon(folder, options=options) as daemon:
        ports = Ports(_port(daemon.url), _port(daemon.follow), resp)
        direct = Place(ports.http)
        for name in NAMES:
            data = f"bytes of {name}".encode()
            sha256 = hashlib.sha256(data).hexdigest()
            row = ["create", name, sha256, len(data)]
            assert direct.ask("PUT", f"/v1/files/sha256/{sha256}", data).status == 201
            assert direct.ask("POST", "/v1/streams/files/facts", json.dumps({"facts": [[row]]})).status == 200
        yield ports


def _port(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


@pytest.fixture(scope="module", params=found_proxies())
def behind(request: Any, daemon: Ports, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """Each proxy that is here, as contrib/proxies has it."""
    with ReverseProxy(tmp_path_factory.mktemp(request.param), request.param, daemon) as proxy:
        yield Behind(request.param, proxy, Place(proxy.ports.http, proxy.ca_file), Place(daemon.http))


def test_a_fact_reaches_who_follows_as_it_is_committed(behind: Behind) -> None:
    """The head of the answer comes at once too, and the next heartbeat would be too late."""
    head = json.loads(behind.direct.ask("GET", "/v1/extent").body)["head"]
    connection = behind.there.connect()
    connection.request("GET", f"/v1/changelog?since={head}&follow=true&heartbeat=60", headers=AUTHORIZED)
    with connection.getresponse() as response:
        first = json.loads(response.readline())
        behind.direct.ask("POST", APPEND, BODY)
        second = json.loads(response.readline())

    assert first["heartbeat"]["serial"] == head
    assert second["serial"] == head + 1


def test_each_line_of_a_stream_of_appends_is_answered_before_the_next_is_sent(behind: Behind) -> None:
    """A proxy that gathers the body would keep the writer waiting for ever."""
    line = json.dumps({"stream": "push_rules", "facts": [[["@ada:hs.example"]]]}).encode() + b"\n"
    chunk = b"%x\r\n%b\r\n" % (len(line), line)
    connection = behind.there.connect()
    connection.putrequest("POST", "/v1/appends")
    for name, value in AUTHORIZED.items():
        connection.putheader(name, value.replace("json", "x-ndjson"))
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    sock = connection.sock
    sock.sendall(chunk)
    with connection.getresponse() as response:
        first = json.loads(response.readline())["first_serial"]
        sock.sendall(chunk)
        second = json.loads(response.readline())["first_serial"]
        sock.sendall(b"0\r\n\r\n")
        rest = response.read()

    assert (second, rest) == (first + 1, b"")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_gives_its_own_file(behind: Behind, name: str) -> None:
    """However a client writes it."""
    paths = dict.fromkeys([quote(name), quote(name, safe="")])

    answers = [behind.there.ask("GET", f"/v1/files/by-name/{path}") for path in paths]

    assert [f"bytes of {name}".encode()] * len(paths) == [answer.body for answer in answers]
    assert [quote(name)] * len(paths) == [answer.headers["synrepl-name"] for answer in answers]


@pytest.mark.parametrize("name", found_proxies())
def test_a_proxy_that_rewrites_names_gives_no_other_file(daemon: Ports, tmp_path: Path, name: str) -> None:
    """It asks for the plain one, and the client sees that."""
    (tmp_path / "secret").write_text(SECRET)
    with ReverseProxy(tmp_path, name, daemon, PROXIES[name].rewriting) as proxy:
        where = ("--url", proxy.url, "--ca-file", str(proxy.ca_file), "--secret-file", "secret")
        done = synrepl(tmp_path, "files", "get", "media//plain.txt", "--to", "got", *where)

    assert done.returncode == 1
    assert "media/plain.txt" in done.stderr
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("HEAD", {}, 200),
        ("GET", {"Range": "bytes=0-4"}, 206),
        ("GET", {"Range": "bytes=-3"}, 206),
        ("GET", {"Range": "bytes=5-"}, 206),
        ("GET", {"Range": "bytes=999-"}, 416),
        ("GET", {"Range": "bytes=0-4", "If_Range": '"another"'}, 200),
        ("GET", {"If_None_Match": "*"}, 304),
        ("GET", {"Accept_Encoding": "gzip, br, zstd"}, 200),
    ],
)
def test_files_are_answered_as_the_daemon_answers(
    behind: Behind, method: str, headers: dict[str, str], status: int
) -> None:
    """The same status, bytes, and headers about them."""
    path = f"/v1/files/by-name/{quote(NAMES[0])}"
    told = ("content-length", "content-range", "etag", "accept-ranges", "synrepl-name", "content-encoding")

    ours, theirs = (place.ask(method, path, **headers) for place in (behind.direct, behind.there))

    assert (ours.status, theirs.status) == (status, status)
    assert theirs.body == ours.body
    assert {name: theirs.headers.get(name) for name in told} == {
        name: ours.headers.get(name) for name in told
    }


def test_bodies_arrive_as_they_were_sent(behind: Behind) -> None:
    """Of a known length, in chunks, and long ones of files; refusals have their reasons."""
    ask = behind.there.ask

    assert ask("POST", APPEND, BODY).status == 200
    assert ask("POST", APPEND, iter([BODY[:9], BODY[9:]]), Transfer_Encoding="chunked").status == 200
    for encoding, body in ("gzip", gzip.compress(BODY)), ("zstd", b"(\xb5/\xfd"):
        refused = ask("POST", APPEND, body, Content_Encoding=encoding)
        assert (refused.status, refused.code()) == (415, "unsupported_encoding")
        assert encoding in json.loads(refused.body)["message"]
        assert refused.headers["accept-encoding"] == "identity"
    data = bytes(10 * LIMIT)
    assert ask("PUT", f"/v1/files/sha256/{hashlib.sha256(data).hexdigest()}", data).status in (200, 201)
    refused = ask("POST", APPEND, BODY, Content_Type="text/plain")
    assert (refused.status, refused.code()) == (415, "content_type")
    assert ask("GET", "/v1/status", Authorization="Bearer another").status == 401


def test_a_client_that_waits_for_100_continue_goes_on(behind: Behind) -> None:
    """As curl does with a longer body."""
    answers = []
    for body in (BODY, b" " * (LIMIT + 1)):
        connection = behind.there.connect()
        connection.putrequest("POST", APPEND)
        for name, value in {**AUTHORIZED, "Expect": "100-continue", "Content-Length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders()
        with connection.sock.makefile("rb") as answer:
            status = int(answer.readline().split()[1])
            if status == 100:
                while answer.readline() != b"\r\n":
                    pass  # Caddy may put its Alt-Svc into it
                connection.sock.sendall(body)
                while status == 100:
                    # A second one does no harm.
                    status = next(int(line.split()[1]) for line in answer if line.startswith(b"HTTP/"))
            answers.append(status)
        connection.close()

    assert answers == [200, 413]


def test_a_body_that_is_too_long_is_refused_in_one_line(behind: Behind, tmp_path: Path) -> None:
    """The command line names the limit, also if the proxy ends the connection before all was sent."""
    (tmp_path / "secret").write_text(SECRET)
    row = json.dumps(["@" + "x" * 20 * LIMIT])
    where = ("--url", behind.proxy.url, "--ca-file", str(behind.proxy.ca_file), "--secret-file", "secret")

    done = synrepl(tmp_path, "append", "push_rules", *where, told=row)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(LIMIT) in done.stderr


@contextmanager
def replica_behind(proxy: ReverseProxy, folder: Path) -> Iterator[tuple[Daemon, Place]]:
    """A replica that follows through this proxy, by HTTP alone."""
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    options = ("--upstream", proxy.url, "--ca-file", str(proxy.ca_file), "--secret-file", "secret")
    with Daemon(folder, options=(*options, "--replica-name", folder.name)) as replica:
        copy = Place(_port(replica.url))

        def is_live() -> bool:
            status = json.loads(copy.ask("GET", "/v1/status").body)
            return bool(status["upstream"]["state"] == "live")

        eventually(is_live, "following")
        yield replica, copy


def test_a_replica_joins_and_follows_through_it(behind: Behind, tmp_path: Path) -> None:
    """A fact that is written is there, too."""
    with replica_behind(behind.proxy, tmp_path) as (_, copy):
        serial = json.loads(behind.there.ask("POST", APPEND, BODY).body)["first_serial"]
        found = copy.ask("GET", f"/v1/changelog?since={serial - 1}&min_serial={serial}&limit=1")

    assert json.loads(found.body)["serial"] == serial


@pytest.mark.parametrize("name", [name for name in found_proxies() if name == "nginx"])
def test_an_upload_that_a_proxy_refuses_is_refused_with_its_reason(
    daemon: Ports, tmp_path: Path, name: str
) -> None:
    """By a replica, which relays it to its primary; in its log, too, in one line."""
    data = bytes(range(250)) * 10_000
    path = f"/v1/files/sha256/{hashlib.sha256(data).hexdigest()}"
    changes = {"client_max_body_size 0;": "client_max_body_size 1m;"}
    with (
        ReverseProxy(tmp_path, name, daemon, changes) as proxy,
        replica_behind(proxy, tmp_path) as (replica, copy),
    ):
        refused = copy.ask("PUT", path, data)
        lines = list(replica.lines)

    assert (refused.status, refused.code()) == (413, "too_large")
    assert "client_max_body_size" in json.loads(refused.body)["message"]
    assert not any("Traceback" in line for line in lines)


@pytest.fixture(scope="module", params=found_proxies(tcp=True))
def tcp(request: Any, daemon: Ports, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """The ports of each proxy that passes on more than HTTP."""
    with ReverseProxy(tmp_path_factory.mktemp(request.param), request.param, daemon) as proxy:
        yield proxy.ports


def test_the_replication_protocol_passes(tcp: Ports) -> None:
    """The first line is the daemon's."""
    assert first_line(tcp.replication).startswith(b"SERVER ")


@pytest.mark.parametrize("name", [name for name in found_proxies() if name == "haproxy"])
def test_the_proxy_can_say_whose_connection_it_is(tmp_path: Path, name: str) -> None:
    """By the PROXY protocol, at a listener that expects it."""
    port = free_port()
    options = ("--listen", f"haproxy:tcp:{port}:interface=127.0.0.1")
    with Daemon(tmp_path, options=options) as daemon:
        leads = Ports(_port(daemon.url), port, free_port())
        changes = {"127.0.0.1:9092": f"127.0.0.1:{port} send-proxy"}
        with ReverseProxy(tmp_path, name, leads, changes) as proxy:
            first = first_line(proxy.ports.replication)

    assert first.startswith(b"SERVER ")


def first_line(port: int) -> bytes:
    """What is said first there."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as sock:
        return sock.makefile("rb").readline()


def test_clients_of_the_resp_port_pass(tcp: Ports) -> None:
    """They subscribe, and hear what is published."""
    client: Any = redis.Redis(port=tcp.resp, password=SECRET, protocol=2)
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("localhost")
    listener.get_message(timeout=PATIENCE_SECONDS)
    client.publish("localhost", "REMOTE_SERVER_UP b.example")
    heard = iter(lambda: listener.get_message(timeout=PATIENCE_SECONDS), None)
    found = next(one["data"] for one in heard if not one["data"].startswith(b"POSITION "))
    listener.close()
    client.close()

    assert found == b"REMOTE_SERVER_UP b.example"
