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

from tests.certificates import Authority
from tests.replicas.processes.replica_line import Line, open_line
from tests.service.processes import Daemon, Process

LONG_AGO, LONG_AGO_TOO = dt.datetime(2021, 3, 4, tzinfo=dt.UTC), dt.datetime(2020, 3, 4, tzinfo=dt.UTC)
KEYS = """
laptop    certificate  read            push_rules
writer    certificate  read,write
reader    of-a-reader  read
paris     of-paris     replicate       push_rules
lim       of-lim       read,write,replicate push_rules
ada       of-ada       read,write
root      of-root      all
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
            socket.create_connection(("127.0.0.1", self.port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            yield Line(secured)

    def ask(self, method: str, path: str, secret: str, body: str = "") -> tuple[int, str]:
        """The status and the message of an answer over plain HTTP."""
        connection = http.client.HTTPConnection(self.daemon.url.removeprefix("http://"), timeout=60)
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        connection.request(method, path, body or None, headers if secret else {})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, json.loads(data)["message"] if answer.status >= 400 else ""

    def tell(self, method: str, path: str, secret: str, body: Any = None) -> tuple[int, str]:
        """The status and the whole answer to a body of JSON, over plain HTTP."""
        connection = http.client.HTTPConnection(self.daemon.url.removeprefix("http://"), timeout=60)
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read().decode()
        connection.close()
        return answer.status, data


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
        ("POST", "/v1/native", "", "replicate"),
        ("POST", "/v1/native/bytes", "{}", "replicate"),
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


@pytest.mark.parametrize("over_http", [False, True], ids=["tcp", "http"])
def test_a_replica_is_refused_in_one_line_that_says_why(deployment: Deployment, *, over_http: bool) -> None:
    """A wrong secret, none, the name of another key, a stream that is not its own; over HTTP, whatever secret
    it has shown there."""

    def line() -> contextlib.AbstractContextManager[Line]:
        return open_line(deployment.daemon, "of-root", over_http=over_http)

    def why(line: Line) -> tuple[str, str]:
        said = line.refusal()
        return said["code"], said["message"]

    with line() as one:
        one.greet("wrong", name="paris")
        assert why(one) == ("no_rights", "the upstream knows no such secret: check secret_file")
    with line() as one:
        one.greet(name="paris")
        assert why(one) == ("no_rights", "the upstream requires a secret: set secret_file")
    with line() as one:
        one.greet("of-lim", name="paris")
        expected = "the name paris belongs to another key: set replica_name, or prove the key paris"
        assert why(one) == ("no_rights", expected)
    with line() as one:
        one.greet("of-a-reader", name="reader")
        assert why(one) == ("no_rights", "the key reader lacks the right replicate: add it in keys_file")
    with line() as one:
        one.greet("of-paris", name="paris")
        one.hear("WELCOME")
        one.say("JOIN {}")
        expected = "the key paris may not see all streams: change its streams in keys_file"
        assert why(one) == ("no_rights", expected)
    with line() as one:
        one.greet("of-paris", name="paris")
        one.hear("WELCOME")
        one.say('JOIN {"filter":{"streams":["push_rules"]}}')
        one.hear("JOINED")


def test_a_key_with_streams_sees_no_names_of_others(deployment: Deployment) -> None:
    """n2_rights: positions, idempotency keys and readers, in every answer."""
    tell = deployment.tell
    for stream, writer, row in (
        ("account_data", "hiddenwriter", ["@a:hs", None, "m.type"]),
        ("push_rules", "openwriter", ["@a:hs"]),
    ):
        body = {"facts": [[row]], "writer": writer, "idempotency_key": f"key-of-{writer}"}
        status, told = tell("POST", f"/v1/streams/{stream}/facts", "of-root", body)
        assert status == 200, told
    assert tell("POST", "/v1/leases", "of-root", {"name": "hiddenreader"})[0] == 200
    query = {"filter": {"streams": ["push_rules"]}}

    answers = [
        tell("GET", "/v1/replication", "of-lim"),
        tell("GET", "/v1/changelog?streams=push_rules&receipts=true", "of-lim"),
        tell("GET", "/v1/changelog?receipts=true&epoch_starts=true", "of-lim"),
        tell("GET", "/v1/extent", "of-lim"),
        tell("GET", "/v1/status", "of-lim"),
        tell("GET", "/status", "of-lim"),
        tell("GET", "/v1/leases", "of-lim"),
    ]

    assert [status for status, _ in answers] == [200] * len(answers)
    told = "".join(text for _, text in answers)
    assert "openwriter" in told
    assert not [name for name in ("hiddenwriter", "hiddenreader", "account_data") if name in told]
    for over_http in (False, True):
        with open_line(deployment.daemon, "of-lim", over_http=over_http) as line:
            line.greet("of-lim", name="lim")
            line.hear("WELCOME")
            line.say("JOIN " + json.dumps(query))
            line.hear("BLOCK snapshot")
            while not (text := line.hear("")).startswith("JOINED"):
                assert "hiddenwriter" not in text


def test_a_replica_key_with_streams_sends_no_commands_for_others(deployment: Deployment) -> None:
    """n17_misc: three facts for federation senders were deleted by an invented sender."""
    tell = deployment.tell
    rows = "/_synapse/replication/get_repl_stream_updates/federation/t?from_token=0&upto_token=9"
    for number in range(3):
        body = {"facts": [[["k", {"number": number}]]]}
        assert tell("POST", "/v1/streams/federation/facts", "of-root", body)[0] == 200
    before = json.loads(tell("GET", rows, "of-root")[1])
    said = [
        "FEDERATION_ACK ghost 999",
        "FEDERATION_ACK ghost 3",
        "USER_SYNC w @ghost:hs PHONE start 1",
        "REMOVE_PUSHER app key @ghost:hs",
        'USER_IP @ghost:hs ["token","ip","agent",null,1]',
    ]

    with open_line(deployment.daemon, "of-lim", over_http=True) as line:
        line.greet("of-lim", name="lim")
        line.say(*(f"UP o {number} {text}" for number, text in enumerate(said, 1)))
        line.hear(f"TAKEN o {len(said)} 1")

    assert len(before["updates"]) == 3
    assert json.loads(tell("GET", rows, "of-root")[1]) == before
    assert "ghost" not in tell("GET", "/v1/commands", "of-root")[1]
    assert json.loads(tell("GET", "/v1/syncing", "of-root")[1]) == {"users": []}
    with open_line(deployment.daemon, "of-root", over_http=True) as line:
        line.greet("of-root", name="root")
        line.say("UP p 1 FEDERATION_ACK sender 999")
        line.hear("TAKEN p 1 1")
    assert json.loads(tell("GET", rows, "of-root")[1]) == before
    metrics = tell("GET", "/metrics", "")[1]
    assert 'synrepl_commands_dropped_total{command="FEDERATION_ACK"} 3.0' in metrics


def test_the_idempotency_key_of_one_peer_fails_no_other(deployment: Deployment) -> None:
    """n10: a key of another peer took the name of a part of a batch."""
    tell = deployment.tell
    appends = [{"stream": "push_rules", "facts": [[[f"@{name}:hs"]]]} for name in "ab"]
    squatted = {"facts": [[["@ghost:hs"]]], "idempotency_key": "import-7/0"}
    assert tell("POST", "/v1/streams/push_rules/facts", "of-lim", squatted)[0] == 200
    squatted["idempotency_key"] = "import-7"
    assert tell("POST", "/v1/streams/push_rules/facts", "of-lim", squatted)[0] == 200

    batches = [
        tell("POST", "/v1/facts", secret, {"appends": appends, "idempotency_key": "import-7"})
        for secret in ("of-ada", "of-ada", "of-root")
    ]

    assert [status for status, _ in batches] == [200] * 3
    serials = [[one["first_serial"] for one in json.loads(told)["appends"]] for _, told in batches]
    assert serials == [[3, 4], [3, 4], [5, 6]]


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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/v1/status")
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found
