"""A peer names addresses, uuids and names of others: no daemon sends it a secret, or moves a lease for it."""

import http.client
import json
import socketserver
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pytest

from synrepl.replicas.relay.leases import MAX_LEASES_OF_KEY
from tests.processes.channel import eventually
from tests.processes.loading import report
from tests.replicas.processes.replica_line import open_line
from tests.service.processes import TWISTD, Daemon

SHARED: Final = "SHAREDsecretOFALLdaemons0123"
PARIS: Final = "parisADMINkey0123456789"
MALLORY: Final = "malloryREPLICATEkey01234567"
SECRETS: Final = (SHARED, PARIS, MALLORY)
KEYS: Final = f"paris {PARIS} all\nmallory {MALLORY} replicate push_rules\n"

INQUIRY_SECONDS: Final = 0.3
QUICK: Final = (
    "-c",
    "import synrepl.replicas.roles.rivals as rivals;"
    f"rivals.INQUIRY_INTERVAL = {INQUIRY_SECONDS};" + TWISTD[1],
    *TWISTD[2:],
)
"""A daemon that asks the daemons that it knows every few tenths of a second, not every minute."""


class Answer(NamedTuple):
    """What a daemon answered: the status, and the body."""

    status: int
    body: dict[str, Any]


def ask(url: str, secret: str, method: str, path: str, body: object = None) -> Answer:
    """Send a request with this secret."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return Answer(response.status, json.loads(response.read()))
    finally:
        connection.close()


class QuietServer(ThreadingHTTPServer):
    """A server that says nothing of connections that are cut: daemons are killed here."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class Listener:
    """An HTTP server of an attacker, which records all that it is sent.

    It answers each request with this status, and asks for a key as a daemon does.
    """

    def __init__(self, status: int) -> None:
        self.requests: list[str] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            """Records requests."""

            def do_GET(self) -> None:
                """Record it, and answer."""
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                listener.requests.append(f"{self.requestline}\n{self.headers}\n{body.decode()}")
                self.send_response(status)
                self.send_header("WWW-Authenticate", "Bearer")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_POST = do_GET

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.address = f"- http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


class Upstream:
    """A native upstream that welcomes everybody, and says this of itself; records what it is told."""

    def __init__(self, said: dict[str, Any]) -> None:
        position = {"epoch": 1, "serial": 0, "digest": "0" * 64}
        names = {"history": "h", "uuid": "an-upstream", "instance": "master", "server_name": "localhost"}
        welcome = names | {"position": position, "trimmed_upto": 0} | said
        self.heard: list[bytes] = []
        upstream = self

        class Handler(socketserver.StreamRequestHandler):
            """Says WELCOME to HELLO, and nothing else."""

            def handle(self) -> None:
                """Record all lines."""
                for line in self.rfile:
                    upstream.heard.append(line)
                    if line.startswith(b"HELLO"):
                        self.wfile.write(b"WELCOME " + json.dumps(welcome).encode() + b"\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"tcp:127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def options(folder: Path, *, is_shared: bool) -> tuple[str, ...]:
    """The options of a primary with keys, and with a shared secret or not."""
    found: list[str] = []
    for name, text in (("keys", KEYS), ("secret", SHARED)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
        if name == "keys" or is_shared:
            found += [f"--{name}-file", str(folder / name)]
    return tuple(found)


def register(
    daemon: Daemon, uuid: str, *, name: str, secret: str = MALLORY, address: str = "", serial: int = 0
) -> str:
    """Subscribe over HTTP to the stream that mallory may see, as a replica of this name, uuid and address;
    acknowledge what is said to be stored. Returns why that is refused; nothing if it is not.
    """
    told = ask(daemon.url, PARIS, "GET", "/v1/replication").body
    digests = ask(daemon.url, PARIS, "GET", f"/v1/digests?serials={serial}").body["digests"]
    position = {"epoch": told["position"]["epoch"], "serial": serial, "digest": digests[str(serial)] or ""}
    asked = {"history": told["history"], "position": position, "filter": {"streams": ["push_rules"]}}
    with open_line(daemon, secret, over_http=True) as line:
        line.greet(secret, uuid=uuid, name=name, address=address)
        if (heard := line.hear("WELCOME", "REFUSED")).startswith("WELCOME"):
            line.say("SUBSCRIBE " + json.dumps(asked))
            heard = line.hear("SUBSCRIBED", "REFUSED")
        if heard.startswith("SUBSCRIBED"):
            line.say(f"ACK {position['epoch']} {serial} 0", "PING 1")
            return ""
        refused = json.loads(heard.partition(" ")[2])
        return f"{refused['code']}: {refused['message']}"


@pytest.mark.parametrize("is_shared", [True, False], ids=["a secret and keys", "keys"])
def test_an_address_that_a_replica_tells_is_sent_nothing(tmp_path: Path, is_shared: bool) -> None:
    """Not in inquiries, at a restart nor with a claim, whichever name it gives, and however it would answer.

    The status of the daemon that would have sent a claim there says which address to add.
    """
    given = options(tmp_path, is_shared=is_shared)
    with ExitStack() as stack:
        listeners = [stack.enter_context(Listener(status)) for status in (401, 401, 200, 404)]
        with Daemon(tmp_path, options=given, program=QUICK) as daemon:
            for number, listener in enumerate(listeners):
                assert register(daemon, f"u{number}", name="mallory", address=listener.address) == ""
            eventually(
                lambda: len(ask(daemon.url, PARIS, "GET", "/v1/leases").body["leases"]) == 4, "saved leases"
            )
            daemon.terminate()
        with Daemon(tmp_path, options=given, program=QUICK) as daemon:
            # A replica learns these addresses from its upstream, and has claims for them once it is promoted.
            own, home = tmp_path / "own", tmp_path / "oslo"
            own.write_text(secret := SHARED if is_shared else PARIS)
            own.chmod(0o600)
            home.mkdir()
            own_name = "oslo" if is_shared else "paris"
            more = ("--upstream", daemon.url, "--replica-name", own_name, "--secret-file", str(own))
            with Daemon(home, options=more, program=QUICK) as replica:
                eventually(
                    lambda: ask(replica.url, secret, "GET", "/v1/status").body["state"] == "serving",
                    "a replica that is up to date",
                )
                daemon.terminate()
                promoted = ask(replica.url, secret, "POST", "/v1/promote", {"force": True})
                assert promoted.status == 200, promoted

                def named() -> bool:
                    errors = str(ask(replica.url, secret, "GET", "/v1/status").body["errors"])
                    urls = [listener.address.removeprefix("- ") for listener in listeners]
                    return "address_not_listed" in errors and all(url in errors for url in urls)

                eventually(named, "a problem that names the addresses")

        assert [listener.requests for listener in listeners] == [[]] * 4


def test_the_address_that_an_upstream_tells_of_another_is_sent_nothing(tmp_path: Path) -> None:
    """Neither files, nor writes, nor a request for a hand-over: it could be anybody's."""
    own = tmp_path / "own"
    own.write_text(SHARED)
    own.chmod(0o600)
    home = tmp_path / "replica"
    home.mkdir()
    with (
        Listener(200) as listener,
        Upstream({"role": "replica", "primary": f"tcp:127.0.0.1:1 {listener.address[2:]}"}) as upstream,
        Daemon(home, options=("--upstream", upstream.endpoint, "--secret-file", str(own))) as replica,
    ):
        eventually(lambda: SHARED in str(upstream.heard), "the key at the configured upstream")
        body = {"facts": [[["@a:b"]]]}
        written = ask(replica.url, SHARED, "POST", "/v1/streams/push_rules/facts?timeout=1", body)
        promoted = ask(replica.url, SHARED, "POST", "/v1/promote", {})
        errors = str(ask(replica.url, SHARED, "GET", "/v1/status").body["errors"])

        assert written.status >= 500
        assert promoted.status >= 400
        assert f"address_not_listed: peers told of {listener.address[2:]}" in errors
        assert listener.requests == []


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "HTTP"])
def test_a_replica_with_a_key_forwards_writes_and_takes_over(tmp_path: Path, is_native: bool) -> None:
    """What is sent in good faith arrives: facts, the request for a hand-over, and the claim."""
    home, own = tmp_path / "replica", tmp_path / "own"
    home.mkdir()
    own.write_text(PARIS)
    own.chmod(0o600)
    with Daemon(tmp_path, options=options(tmp_path, is_shared=False), program=QUICK) as primary:
        upstream = f"tcp:{primary.follow}" if is_native else primary.url
        more = ("--upstream", upstream, "--replica-name", "paris", "--secret-file", str(own))
        with Daemon(home, options=more, program=QUICK) as replica:
            eventually(
                lambda: ask(replica.url, PARIS, "GET", "/v1/status").body["state"] == "serving",
                "a replica that is up to date",
            )
            append(replica, 3)
            promoted = ask(replica.url, PARIS, "POST", "/v1/promote", {})
            eventually(
                lambda: ask(primary.url, PARIS, "GET", "/v1/status").body["role"] == "fenced",
                "a fenced primary",
            )
            eventually(
                lambda: ask(replica.url, PARIS, "GET", "/v1/status").body["unnotified"] == [],
                "the answer to the claim",
            )

    assert (promoted.status, promoted.body.get("role"), promoted.body.get("serial")) == (200, "primary", 3)


def serials(daemon: Daemon) -> dict[str, int]:
    """The serial of each lease, by uuid."""
    leases = ask(daemon.url, PARIS, "GET", "/v1/leases").body["leases"]
    return {one["uuid"]: one["serial"] for one in leases}


def append(daemon: Daemon, count: int) -> None:
    """Append so many facts to the stream that mallory may see."""
    facts = [[[f"@u{number}:a"]] for number in range(count)]
    assert ask(daemon.url, PARIS, "POST", "/v1/streams/push_rules/facts", {"facts": facts}).status == 200


def test_a_replica_key_moves_no_lease_of_another_key(tmp_path: Path) -> None:
    """By acknowledging, subscribing, joining or naming it: the facts that it retains stay."""
    with Daemon(tmp_path, options=options(tmp_path, is_shared=True)) as daemon:
        append(daemon, 250)
        assert register(daemon, "p1", name="paris", secret=PARIS, serial=50) == ""
        whys = [
            register(daemon, "p1", name="mallory", serial=250),
            register(daemon, "p1", name="mallory", address="- http://127.0.0.1:1", serial=250),
            register(daemon, "p2", name="paris", serial=250),
            register(daemon, "p1", name="made-up", serial=250),
        ]
        after = serials(daemon)
        own = register(daemon, "m1", name="mallory", serial=250)
        taken_over = register(daemon, "m1", name="paris", secret=PARIS, serial=250)

    report(f"the lease of paris: serial 50 before, {after['p1']} after {len(whys)} attempts of mallory")
    ways_out = "synrepl leases drop paris and synrepl leases add paris give it to any key"
    lease = f"no_rights: lease paris belongs to another key: {ways_out}"
    name = "no_rights: the name paris belongs to another key: set replica_name, or prove the key paris"
    assert whys == [lease, lease, name, lease]
    assert after == {"p1": 50}
    assert (own, taken_over) == ("", "")


def test_one_key_takes_few_of_the_leases(tmp_path: Path) -> None:
    """It took all 1,000 of anonymous readers, for an hour."""
    given = options(tmp_path, is_shared=True)
    keys = tmp_path / "keys"
    keys.write_text(f"{KEYS}grafana of-grafana read\nspark of-spark read\n")
    with Daemon(tmp_path, options=given) as daemon:
        append(daemon, 1)
        statuses = [read(daemon, "of-grafana", f"r{number}") for number in range(1_000)]
        again = read(daemon, "of-grafana", "r7")
        others = [read(daemon, "of-spark", "report"), read(daemon, SHARED, "other")]
        taken = read(daemon, "of-spark", "r7")

    report(f"of 1,000 anonymous leases one key has taken {statuses.count(200)}")
    assert statuses == [200] * MAX_LEASES_OF_KEY + [429] * (1_000 - MAX_LEASES_OF_KEY)
    assert [again, *others] == [200] * 3
    assert taken == 403


def read(daemon: Daemon, secret: str, reader: str) -> int:
    """The status of an answer to a reader of the changelog with this name."""
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
    headers = {"Authorization": f"Bearer {secret}", "Synrepl-Reader": reader}
    try:
        connection.request("GET", "/v1/changelog?limit=1", headers=headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
