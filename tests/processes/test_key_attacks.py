"""Real daemons with TLS and keys: each way in without a right is refused in one line that says which."""

import contextlib
import datetime as dt
import http.client
import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synrepl.replication.relay.handshake import REPLICA, proof
from tests.certificates import Authority
from tests.service.processes import Daemon, Process

LONG_AGO, LONG_AGO_TOO = dt.datetime(2021, 3, 4, tzinfo=dt.UTC), dt.datetime(2020, 3, 4, tzinfo=dt.UTC)
KEYS = """
laptop    certificate  read            push_rules
writer    certificate  read,write
reader    of-a-reader  read
paris     of-paris     replicate       push_rules
"""


class Deployment:
    """A daemon whose listeners speak TLS and want certificates, and its authority."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ours, self.theirs = Authority(home, "ours"), Authority(home, "theirs")
        certificate, key = self.ours.sign("localhost")
        self.keys = home / "keys"
        self.keys.write_text(KEYS)
        self.keys.chmod(0o600)
        tls = f"tls:0:interface=127.0.0.1:certificate={certificate}:privateKey={key}"
        options = ("--listen", f"{tls}:trustRoots={self.ours.ca_file}", "--keys-file", str(self.keys))
        self.daemon = Daemon(home, options=options)
        listening = [line for line in self.daemon.lines if "followers: listening at" in line]
        self.port = int(listening[1].split("tcp:127.0.0.1:")[1].split(",")[0])

    def certified(self, name: str, **options: dt.datetime) -> tuple[Path, Path]:
        """A certificate of our authority with this common name."""
        return self.ours.sign(name, common_name=name, **options)

    @contextlib.contextmanager
    def line(self, certificate: tuple[Path, Path] | None) -> Iterator["Line"]:
        """A connection to the line port that shows this certificate."""
        context = ssl.create_default_context(cafile=str(self.ours.ca_file))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            yield Line(secured)

    def ask(self, method: str, path: str, secret: str, body: str = "") -> tuple[int, str]:
        """The status and the message of an answer over plain HTTP."""
        connection = http.client.HTTPConnection(self.daemon.url.removeprefix("http://"), timeout=20)
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        connection.request(method, path, body or None, headers if secret else {})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, json.loads(data)["message"] if answer.status >= 400 else ""


class Line:
    """A connection to the line port."""

    def __init__(self, secured: socket.socket) -> None:
        self._secured = secured
        self._read = secured.makefile("rb")

    def say(self, *lines: str) -> None:
        """Send these lines."""
        self._secured.sendall("".join(f"{line}\n" for line in lines).encode())

    def hear(self, word: str) -> str:
        """The next line that begins with this word."""
        while line := self._read.readline().decode():
            if line.startswith(word):
                return line.rstrip("\n")
        raise AssertionError(f"the connection ended without {word}")


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    with made.daemon:
        yield made


def test_a_follower_with_a_certificate_sees_its_streams_alone(deployment: Deployment) -> None:
    """The line port has no other proof of who asks."""
    with deployment.line(deployment.certified("laptop")) as line:
        line.say("REPLICATE push_rules 0", "REPLICATE receipts 0")
        assert line.hear("POSITION") == "POSITION push_rules 0"
        assert line.hear("ERROR") == "ERROR unknown stream receipts"
    with deployment.line(deployment.certified("laptop")) as line:
        line.say("REPLICATE", 'INVALIDATE_CACHE get_user ["@a:hs"]')
        assert "the key laptop lacks the right write" in line.hear("ERROR")
    with deployment.line(deployment.certified("writer")) as line:
        line.say('INVALIDATE_CACHE get_user ["@a:hs"]', "REPLICATE caches 0")
        line.hear("RDATA caches")


def test_a_certificate_without_a_key_is_refused(deployment: Deployment) -> None:
    """The CA may have signed others, for other ends."""
    with deployment.line(deployment.certified("stranger")) as line:
        line.say("REPLICATE push_rules 0")
        assert line.hear("ERROR") == "ERROR the certificate of stranger is not in keys_file, or was revoked"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("none", "the client sent no certificate; this listener requires one"),
        ("other CA", "the client's certificate is signed by a CA that is not trusted"),
        ("expired", "the client's certificate expired on 2021-03-04"),
    ],
)
def test_a_certificate_that_is_not_good_is_refused(deployment: Deployment, kind: str, why: str) -> None:
    """And the daemon's log has one line that says why."""
    certificate = {
        "none": None,
        "other CA": deployment.theirs.sign("laptop", common_name="laptop"),
        "expired": deployment.certified("laptop", start=LONG_AGO_TOO, end=LONG_AGO),
    }[kind]

    with contextlib.suppress(OSError), deployment.line(certificate) as line:
        line.say("REPLICATE push_rules 0")
        with pytest.raises((AssertionError, OSError)):
            line.hear("POSITION")

    deployment.daemon.wait_for(why)
    assert sum("refused" in one for one in deployment.daemon.lines) == 1


def test_a_right_that_is_missing_is_named(deployment: Deployment) -> None:
    """Over HTTP, for each right."""
    for method, path, body, right in [
        ("POST", "/v1/streams/push_rules/facts", '{"facts":[[["@a:hs"]]]}', "write"),
        ("POST", "/v1/replicas/u/join", '{"name":"n","join":{}}', "replicate"),
        ("POST", "/v1/promote", "{}", "administer"),
        ("POST", "/v1/claim", '{"epoch":9,"uuid":"z","address":"","history":""}', "administer"),
    ]:
        status, message = deployment.ask(method, path, "of-a-reader", body)
        assert (status, message) == (403, f"the key reader lacks the right {right}: add it in keys_file")


def test_a_wrong_and_a_revoked_key_are_refused(deployment: Deployment) -> None:
    """Also for who is connected just now."""
    assert deployment.ask("GET", "/v1/status", "")[1].startswith("no key was sent")
    assert deployment.ask("GET", "/v1/status", "wrong")[1].startswith("this key is unknown or was revoked")
    with deployment.line(deployment.certified("laptop")) as line:
        line.say("REPLICATE push_rules 0")
        line.hear("POSITION")

        deployment.keys.write_text(KEYS.replace("laptop", "#").replace("reader", "#"))
        os.kill(deployment.daemon.pid, signal.SIGHUP)

        assert line.hear("ERROR") == "ERROR your key was revoked or changed"
    assert deployment.ask("GET", "/v1/status", "of-a-reader")[0] == 401


def replica_says(line: Line, secret: str, *, name: str, nonce: str = "n", shown: str = "") -> str:
    """Greets as a replica of this name does; gives the proof that was shown."""
    line.say("HELLO " + json.dumps({"uuid": "u", "name": name, "nonce": nonce}))
    challenge = json.loads(line.hear("CHALLENGE").partition(" ")[2])
    shown = shown or proof(secret, REPLICA, (challenge["nonce"], nonce), "u", name)
    line.say("AUTH " + json.dumps({"proof": shown}))
    return shown


def test_a_replica_is_refused_in_one_line_that_says_why(deployment: Deployment) -> None:
    """A wrong secret, a proof that was overheard, a name without a key, a stream that is not its own."""
    plain = deployment.daemon.follow.split(":")

    @contextlib.contextmanager
    def line() -> Iterator[Line]:
        with socket.create_connection((plain[0], int(plain[1])), timeout=20) as made:
            yield Line(made)

    def why(line: Line) -> tuple[str, str]:
        said = json.loads(line.hear("REFUSED").partition(" ")[2])
        return said["code"], said["message"]

    with line() as one:
        replica_says(one, "wrong", name="paris")
        assert why(one) == ("no_rights", "the proof is wrong: the upstream has another secret")
    with line() as one:
        overheard = replica_says(one, "of-paris", name="paris")
        one.hear("WELCOME")
    with line() as one:
        replica_says(one, "", name="paris", shown=overheard)
        assert why(one) == ("no_rights", "the proof is wrong: the upstream has another secret")
    with line() as one:
        replica_says(one, "of-paris", name="oslo")
        assert why(one) == (
            "no_rights",
            "there is no key oslo in keys_file of the upstream, or it was revoked",
        )
    with line() as one:
        replica_says(one, "of-a-reader", name="reader")
        assert why(one) == ("no_rights", "the key reader lacks the right replicate: add it in keys_file")
    with line() as one:
        replica_says(one, "of-paris", name="paris")
        one.hear("WELCOME")
        one.say("JOIN {}")
        expected = "the key paris may not see all streams: change its streams in keys_file"
        assert why(one) == ("no_rights", expected)
    with line() as one:
        replica_says(one, "of-paris", name="paris")
        one.hear("WELCOME")
        one.say('JOIN {"filter":{"streams":["push_rules"]}}')
        one.hear("JOINED")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("other CA", "TLS: the certificate is signed by a CA that is not trusted"),
        ("other name", "TLS: the certificate is for localhost, not for 127.0.0.1"),
        ("no certificate", "TLS: the server wants a certificate of its clients"),
    ],
)
def test_a_follower_is_told_why_it_is_not_connected(deployment: Deployment, kind: str, why: str) -> None:
    """`synrepl tail` of an operator who mistyped something."""
    ca = deployment.theirs.ca_file if kind == "other CA" else deployment.ours.ca_file
    host = "127.0.0.1" if kind == "other name" else "localhost"
    target = f"tls:{host}:{deployment.port}:trustRoots={ca}"
    with Process("-m", "synrepl", "tail", target, "--server-name", "localhost", cwd=deployment.home) as tail:
        tail.wait_for(why)


@pytest.mark.story
def test_a_replica_over_tls_joins_and_shows_its_own_certificate(tmp_path: Path) -> None:
    """Natively and over HTTP; what daemons tell each other as their addresses speaks TLS as well."""
    ours = Authority(tmp_path, "ours")
    certificate, key = ours.sign("localhost", "127.0.0.1")
    tls = f"tls:0:interface=127.0.0.1:certificate={certificate}:privateKey={key}"
    own = ours.sign("paris", common_name="paris")
    (tmp_path / "keys").write_text("paris certificate all\n")
    guard = f":trustRoots={ours.ca_file}"
    options = ("--http", tls + guard, "--keys-file", str(tmp_path / "keys"))
    shown = (
        *("--ca-file", str(ours.ca_file)),
        *("--certificate-file", str(own[0])),
        *("--private-key-file", str(own[1])),
    )
    with ListeningDaemon(tmp_path / "primary", tls + guard, options) as primary:
        upstreams = (f"tls:localhost:{primary.port}", f"https://localhost:{primary.http}")
        for number, upstream in enumerate(upstreams):
            home, more = tmp_path / f"replica{number}", ("--upstream", upstream, *shown)
            with ListeningDaemon(home, "tcp:0:interface=127.0.0.1", more) as replica:
                replica.wait_for("joined at serial 0")
                _, where = ask_plainly(replica.http)["primary"].split()
                assert where.replace("localhost", "127.0.0.1") == f"https://127.0.0.1:{primary.http}"


class ListeningDaemon(Daemon):
    """A daemon on these endpoints; `port` and `http` are the numbers of its ports."""

    def __init__(self, folder: Path, listen: str, options: tuple[str, ...]) -> None:
        folder.mkdir()
        super().__init__(folder, options=("--listen", listen, *options))
        lines = [line for line in self.lines if ": listening at tcp:127.0.0.1:" in line]
        ports = [int(line.split("tcp:127.0.0.1:")[1].split(",")[0]) for line in lines]
        self.port, self.http = ports[1], ports[2]


def ask_plainly(port: int) -> dict[str, Any]:
    """The status of a daemon without TLS."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/v1/status")
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found
