"""Daemons of one log with a secret, over loopback and over TLS: each lists the others, and finds them."""

import hashlib
import json
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synrepl.transports.authority import init
from tests.processes.channel import eventually
from tests.servers.ports import free_port
from tests.service.processes import TWISTD, Process

SECRET = "correct-horse-battery"


class Deployment:
    """Three daemons, a, b and c, with addresses that are known before they start."""

    def __init__(self, folder: Path, *, is_tls: bool) -> None:
        self.folder = folder
        # A daemon that is not there yet must have an address.
        self.ports = {name: (free_port(), free_port()) for name in "abc"}
        self._daemons: dict[str, Process] = {}
        self._is_tls = is_tls
        self._secret = folder / "secret"
        self._secret.write_text(SECRET)
        self._secret.chmod(0o600)
        self._context = None
        if is_tls:
            init(folder / "tls", [], days=2, now=time.time())
            self._context = ssl.create_default_context(cafile=str(folder / "tls" / "ca.pem"))

    def native(self, name: str) -> str:
        return f"{'tls' if self._is_tls else 'tcp'}:127.0.0.1:{self.ports[name][0]}"

    def http(self, name: str) -> str:
        return f"{'https' if self._is_tls else 'http'}://127.0.0.1:{self.ports[name][1]}"

    def start(self, name: str, *upstreams: str) -> None:
        """Start a daemon that lists these upstreams."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        kind, more = ("tls", self._certificate) if self._is_tls else ("tcp", "")
        native, http = (f"{kind}:{port}:interface=127.0.0.1{more}" for port in self.ports[name])
        options = ["--listen", native, "--http", http, "--secret-file", str(self._secret)]
        options += ["--replica-name", name, "--dialect", "native", "--heartbeat-seconds", "0.5"]
        options += ["--ca-file", str(self.folder / "tls" / "ca.pem")] if self._is_tls else []
        for one in upstreams:
            options += ["--upstream", one]
        self._daemons[name] = Process(*TWISTD, *options, cwd=home)
        self._daemons[name].wait_for("ready:")

    @property
    def _certificate(self) -> str:
        tls = self.folder / "tls"
        return f":certificate={tls / 'server.pem'}:privateKey={tls / 'server.key'}"

    def stop(self, name: str) -> None:
        self._daemons.pop(name).kill()

    def stop_all(self) -> None:
        for name in list(self._daemons):
            self.stop(name)

    def ask(self, name: str, path: str, body: Any = None, *, method: str | None = None) -> Any:
        """Send a request with the secret."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.http(name) + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60, context=self._context) as answer:
            read = answer.read()
            return json.loads(read) if answer.headers["Content-Type"] == "application/json" else read

    def status(self, name: str) -> Any:
        return self.ask(name, "/v1/status")

    def is_live(self, name: str) -> bool:
        upstream = self.status(name)["upstream"]
        return bool(upstream and upstream["state"] == "live")

    def follows(self, name: str, other: str) -> bool:
        return self.is_live(name) and str(self.ports[other][0]) in self.status(name)["upstream"]["address"]

    def append(self, name: str) -> int:
        path = "/v1/streams/push_rules/facts"
        return int(self.ask(name, path, {"facts": [[["@a:b"]]]})["first_serial"])


@pytest.fixture(params=[False, True], ids=["loopback", "tls"])
def deployment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    made = Deployment(tmp_path, is_tls=request.param)
    try:
        yield made
    finally:
        made.stop_all()


def test_files_writes_hand_over_and_fencing(deployment: Deployment) -> None:
    """All that daemons ask each other for."""
    d = deployment
    d.start("a")
    d.start("b", d.native("a"), d.http("c"))
    d.start("c", d.native("a"), d.native("b"))
    eventually(lambda: d.is_live("b") and d.is_live("c"), "two replicas")

    # A file and a write through a native upstream, which has told its HTTP address.
    data = b"a file"
    sha256 = hashlib.sha256(data).hexdigest()
    d.ask("c", f"/v1/files/sha256/{sha256}", data, method="PUT")
    assert d.ask("a", f"/v1/files/sha256/{sha256}") == data
    assert d.append("c") == 1

    # A hand-over, and the third daemon finds the promoted one.
    assert d.ask("b", "/v1/promote", {})["role"] == "primary"
    eventually(lambda: d.status("a")["role"] == "fenced", "a fenced daemon")
    eventually(lambda: d.follows("c", "b"), "the third daemon at the promoted one")
    assert d.append("c") == 2

    # The old primary comes back, as a replica of those that its operator lists now.
    d.stop("a")
    d.start("a", d.native("b"), d.http("c"))
    eventually(lambda: d.follows("a", "b"), "the old primary, as a replica")

    # A promotion by force fences the old primary when it comes back.
    d.stop("b")
    assert d.ask("c", "/v1/promote", {"force": True})["role"] == "primary"
    d.start("b", d.native("a"), d.http("c"))
    eventually(lambda: d.status("b")["role"] in ("fenced", "replica"), "a fenced daemon, again")
    assert d.append("c") == 3
    eventually(lambda: d.is_live("a") and d.status("a")["serial"] == 3, "the other replica")


def test_a_primary_that_is_not_listed_is_named(deployment: Deployment) -> None:
    """It is not followed: the status says which address to add, and with that it is."""
    d = deployment
    d.start("a")
    d.start("b", d.native("a"))
    d.start("c", d.native("a"))
    eventually(lambda: d.is_live("b") and d.is_live("c"), "two replicas")
    assert d.ask("b", "/v1/promote", {})["role"] == "primary"
    eventually(lambda: d.status("a")["role"] == "fenced", "a fenced daemon")

    def named() -> bool:
        errors = str(d.status("c")["errors"])
        return "address_not_listed" in errors and d.native("b") in errors

    eventually(named, "the address of the promoted daemon")
    d.stop("c")
    d.start("c", d.native("a"), d.native("b"))
    eventually(lambda: d.follows("c", "b"), "the replica, at the promoted one")
