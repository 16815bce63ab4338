"""A man in the middle of a native connection over TLS, between two real daemons, also over HTTPS."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from synrepl.replicas.wire.blocks import encode_block
from synrepl.streams.digest import chain
from synrepl.streams.facts import Fact, encode_fact
from tests.certificates import Authority
from tests.processes.channel import SECRET, ask, eventually, status
from tests.processes.proxy import Proxy
from tests.service.processes import Daemon


class Pair:
    """A primary and its replica, with a proxy between them; both have the secret."""

    def __init__(self, folder: Path, stack: ExitStack, *, over_http: bool) -> None:
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        authority = Authority(folder, "ours")
        certificate, key = authority.sign("127.0.0.1")
        tls = f"tls:0:interface=127.0.0.1:certificate={certificate}:privateKey={key}"
        options = ["--secret-file", str(secret), "--heartbeat-seconds", "0.2"]
        options += ["--ca-file", str(authority.ca_file)]
        listeners = ("--listen", tls, "--http", tls)
        self.primary = stack.enter_context(self._daemon(folder / "primary", *options, *listeners))
        listening = [line for line in self.primary.lines if "listening at tcp:" in line]
        port = int(listening[2 if over_http else 1].split("tcp:127.0.0.1:")[1].split(",")[0])
        self.proxy = stack.enter_context(Proxy(port))
        upstream = f"{'https://' if over_http else 'tls:'}{self.proxy.address}"
        self.replica = stack.enter_context(self._daemon(folder / "replica", *options, "--upstream", upstream))

    @staticmethod
    def _daemon(folder: Path, *options: str) -> Daemon:
        folder.mkdir()
        return Daemon(folder, options=options)

    def rows(self) -> bytes:
        """What the replica serves."""
        return ask(self.replica.url, "/v1/changelog?since=0")

    def forged(self) -> bytes:
        """A block that fits after the last fact of the replica."""
        said = status(self.replica.url)
        fields = {
            "serial": said["serial"] + 1,
            "epoch": said["epoch"],
            "stream": "push_rules",
            "writer": "master",
            "prev_token": 0,
            "token": 1,
            "committed_at_ms": 1,
            "rows": b'[["@forged:hs"]]',
        }
        digest = chain(said["digest"], **fields)
        return encode_block("facts", 1, encode_fact(Fact(**fields, digest=digest)))

    def is_live(self) -> bool:
        return bool(status(self.replica.url)["upstream"]["state"] == "live")


@pytest.fixture(params=[False, True], ids=["tcp", "http"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        made = Pair(tmp_path, stack, over_http=request.param)
        eventually(made.is_live, lambda: "the replica")
        yield made


def test_a_man_in_the_middle_adds_no_fact(pair: Pair) -> None:
    """A block that he adds ends the connection; then the replica comes back."""
    links, before = pair.proxy.links, status(pair.replica.url)["serial"]
    pair.proxy.add(pair.forged())
    eventually(lambda: pair.proxy.links > links and pair.is_live(), lambda: "the replica, again")

    assert b"@forged:hs" not in pair.rows()
    assert status(pair.replica.url)["serial"] == before


@pytest.mark.parametrize("up", [False, True], ids=["down", "up"])
def test_a_flipped_bit_ends_the_connection(pair: Pair, *, up: bool) -> None:
    """In either direction; then the replica comes back."""
    links = pair.proxy.links
    pair.proxy.flip(1, up=up)
    eventually(lambda: pair.proxy.flipped, lambda: "a flipped bit")
    pair.proxy.flip(0)
    eventually(lambda: pair.proxy.links > links and pair.is_live(), lambda: "the replica, again")

    assert status(pair.replica.url)["errors"] == []
