"""TLS to Redis: in when everything is right, and otherwise told what is wrong."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from OpenSSL import crypto
from twisted.internet.protocol import connectionDone
from twisted.internet.ssl import Certificate, CertificateOptions, KeyPair, trustRootFromCertificates
from twisted.protocols.portforward import ProxyFactory, ProxyServer
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from synrepl.transports.redis.address import RedisAddress
from tests.certificates import Authority
from tests.redis.test_link import stopped
from tests.redis.worlds import RealWorld, Recorder, World, rdata

LONG_AGO = dt.datetime(2021, 3, 4, tzinfo=dt.UTC)
FAR_AHEAD = dt.datetime(2119, 3, 4, tzinfo=dt.UTC)


class TlsRedis:
    """A port with TLS, before a Redis without."""

    def __init__(
        self, world: RealWorld, cert_file: Path, key_file: Path, *, clients_of: Authority | None = None
    ) -> None:
        self.open: set[Any] = set()
        options: dict[str, Any] = {}
        if clients_of is not None:
            trusted = [Certificate.loadPEM(clients_of.ca_file.read_bytes())]
            options["trustRoot"] = trustRootFromCertificates(trusted)
        key = KeyPair.load(key_file.read_bytes(), crypto.FILETYPE_PEM)
        certificate = Certificate.loadPEM(cert_file.read_bytes())
        context = CertificateOptions(privateKey=key.original, certificate=certificate.original, **options)
        outer = self

        class Proxy(ProxyServer):
            """Knows its reactor, and is counted."""

            reactor = world.reactor

            def connectionMade(self) -> None:
                outer.open.add(self)
                super().connectionMade()

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                outer.open.discard(self)
                super().connectionLost(reason)

        factory = ProxyFactory("127.0.0.1", world.server.port)
        factory.noisy = False
        factory.protocol = Proxy
        secured = TLSMemoryBIOFactory(context, False, factory, world.reactor)
        self._listening = world.reactor.listenTCP(0, secured, interface="127.0.0.1")
        self.port = self._listening.getHost().port

    async def stop(self, world: World) -> None:
        """Listen no more, and wait until the last connection is gone."""
        await self._listening.stopListening()
        await world.until(lambda: not self.open, "a connection stays open")
        await world.wait(0.02)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    """The CA that the link is told to trust."""
    return Authority(tmp_path, "ours")


@pytest.fixture
def world(tmp_path: Path) -> RealWorld:
    """A Redis without TLS, which the tests put a port with TLS before."""
    return RealWorld("tcp", tmp_path)


def tell(
    world: RealWorld,
    url: str,
    certificate: tuple[Path, Path],
    *,
    clients_of: Authority | None = None,
    is_in: bool,
) -> str:
    """Connect to it; gives the first reason why that did not work."""
    member = Recorder()

    async def story(world: World) -> None:
        assert isinstance(world, RealWorld)
        port = TlsRedis(world, *certificate, clients_of=clients_of)
        address = RedisAddress.parse(url.replace("PORT", str(port.port)))
        link = world.link(member, address=address)
        link.start()
        if is_in:
            await world.until(lambda: member.is_up() or member.whys)
            assert not member.whys
            link.write(b"".join(rdata(token, 1000) for token in range(1, 1001)))
            await world.until(lambda: len(member.tokens) == 1000)
        else:
            await world.until(lambda: member.told.count("unreachable") == 4)
        await stopped(world, link.stop())
        await port.stop(world)

    world.run(story)
    assert is_in == ("hearing" in member.told)
    assert len(set(member.whys)) <= 1, member.whys
    return member.whys[0].partition(": ")[2] if member.whys else ""


@pytest.mark.parametrize(
    ("names", "host", "query"),
    [
        (["localhost"], "localhost", ""),
        (["127.0.0.1"], "127.0.0.1", ""),
        (["redis.example"], "127.0.0.1", "&server_name=redis.example"),
        (["*.redis.example", "other"], "localhost", "&server_name=a.redis.example"),
    ],
)
def test_the_right_redis_is_let_in(
    world: RealWorld, ours: Authority, names: list[str], host: str, query: str
) -> None:
    """By the name of its host, its address, or the name that it is expected to have."""
    tell(world, f"rediss://{host}:PORT?ca_file={ours.ca_file}{query}", ours.sign(*names), is_in=True)


def test_another_name_is_refused(world: RealWorld, ours: Authority) -> None:
    """Though the CA is the right one: anybody may have a certificate of it."""
    url = f"rediss://localhost:PORT?ca_file={ours.ca_file}"
    why = tell(world, url, ours.sign("redis.example", "10.0.0.1"), is_in=False)

    assert why == "TLS: the certificate is for redis.example, 10.0.0.1, not for localhost"


def test_another_address_is_refused(world: RealWorld, ours: Authority) -> None:
    """A name that looks like an address is none."""
    url = f"rediss://127.0.0.1:PORT?ca_file={ours.ca_file}"
    why = tell(world, url, ours.sign("localhost", "10.0.0.1"), is_in=False)

    assert why == "TLS: the certificate is for localhost, 10.0.0.1, not for 127.0.0.1"


def test_another_ca_is_refused(world: RealWorld, ours: Authority, tmp_path: Path) -> None:
    """With the file that it is not in."""
    theirs = Authority(tmp_path, "theirs")
    url = f"rediss://localhost:PORT?ca_file={ours.ca_file}"
    why = tell(world, url, theirs.sign("localhost"), is_in=False)

    assert why == f"TLS: the certificate is signed by a CA that is not trusted (it is not in {ours.ca_file})"


def test_a_ca_that_the_system_does_not_know_is_refused(world: RealWorld, ours: Authority) -> None:
    """And it is told how to make it known."""
    why = tell(world, "rediss://localhost:PORT", ours.sign("localhost"), is_in=False)

    assert why == "TLS: the certificate is signed by a CA that is not trusted (name a ca_file)"


def test_an_expired_certificate_is_refused(world: RealWorld, ours: Authority) -> None:
    """With the day."""
    url = f"rediss://localhost:PORT?ca_file={ours.ca_file}"

    assert tell(world, url, ours.sign("localhost", end=LONG_AGO), is_in=False) == (
        "TLS: the certificate expired on 2021-03-04"
    )


def test_a_certificate_of_the_future_is_refused(world: RealWorld, ours: Authority) -> None:
    """Most often the clock here is wrong."""
    url = f"rediss://localhost:PORT?ca_file={ours.ca_file}"

    assert tell(world, url, ours.sign("localhost", start=FAR_AHEAD), is_in=False) == (
        "TLS: the certificate is not valid before 2119-03-04"
    )


def test_a_client_certificate_is_shown(world: RealWorld, ours: Authority) -> None:
    """To a Redis that asks for one."""
    cert_file, key_file = ours.sign("worker")
    url = f"rediss://localhost:PORT?ca_file={ours.ca_file}&cert_file={cert_file}&key_file={key_file}"

    tell(world, url, ours.sign("localhost"), clients_of=ours, is_in=True)


def test_a_missing_client_certificate_is_told(world: RealWorld, ours: Authority) -> None:
    """The alert of TLS comes only after a handshake that looked good."""
    url = f"rediss://localhost:PORT?ca_file={ours.ca_file}"
    why = tell(world, url, ours.sign("localhost"), clients_of=ours, is_in=False)

    assert why == "TLS: Redis wants a certificate of its clients: name a cert_file and a key_file"


def test_a_client_certificate_of_another_ca_is_told(
    world: RealWorld, ours: Authority, tmp_path: Path
) -> None:
    """So that nobody looks for the fault in the one of Redis."""
    cert_file, key_file = Authority(tmp_path, "theirs").sign("worker")
    url = f"rediss://localhost:PORT?ca_file={ours.ca_file}&cert_file={cert_file}&key_file={key_file}"

    assert "TLS: Redis refuses our certificate" in tell(
        world, url, ours.sign("localhost"), clients_of=ours, is_in=False
    )


def test_a_sentinel_that_is_refused_is_named(world: RealWorld, ours: Authority) -> None:
    """With what the others said: the certificate may be that of the one which matters least."""
    url = f"redis+sentinel://127.0.0.1:1,localhost:PORT/main?tls=true&ca_file={ours.ca_file}"
    why = tell(world, url, ours.sign("redis.example"), is_in=False)

    assert why.startswith("127.0.0.1:1: connection refused; localhost:")
    assert why.endswith(": TLS: the certificate is for redis.example, not for localhost")


def test_bad_files_are_told(world: RealWorld, ours: Authority, tmp_path: Path) -> None:
    """By their names."""
    empty = tmp_path / "empty"
    empty.write_text("")
    cert_file, _ = ours.sign("worker")
    _, other_key = ours.sign("other")
    missing = tmp_path / "none"
    known = f"cert_file={cert_file}&ca_file={ours.ca_file}"
    whys = {
        f"ca_file={missing}": f"cannot read the certificates in {missing}: No such file or directory",
        f"ca_file={empty}": f"{empty} holds no certificate in PEM",
        f"{known}&key_file={empty}": f"{empty} holds no key in PEM that can be read without a passphrase",
        f"{known}&key_file={other_key}": f"the key in {other_key} does not belong to the certificate",
    }
    members = {query: Recorder() for query in whys}

    async def story(world: World) -> None:
        links = []
        for query, member in members.items():
            links.append(world.link(member, address=RedisAddress.parse(f"rediss://localhost:1?{query}")))
            links[-1].start()
        await world.until(lambda: all(member.told for member in members.values()))
        for link in links:
            await stopped(world, link.stop())

    world.run(story)
    assert whys == {query: member.whys[0] for query, member in members.items()}


def test_a_certificate_for_too_much_is_refused(world: RealWorld, ours: Authority) -> None:
    """As one for everything below a top-level domain."""
    url = f"rediss://127.0.0.1:PORT?ca_file={ours.ca_file}&server_name=redis.example"

    assert "names nobody properly" in tell(world, url, ours.sign("*.example"), is_in=False)


def test_a_redis_with_tls_is_told_to_whom_speaks_without(world: RealWorld, ours: Authority) -> None:
    """It answers with an alert of TLS, or, as the server of this test, not at all."""
    why = tell(world, "redis://127.0.0.1:PORT", ours.sign("localhost"), is_in=False)

    assert "TLS: say rediss://" in why


def test_a_redis_without_tls_is_told(world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the end of a line, and we for its certificate."""
    monkeypatch.setattr("synrepl.transports.redis.attempt.CONNECT_SECONDS", 0.3)
    member = Recorder()

    async def story(world: World) -> None:
        assert isinstance(world, RealWorld)
        url = f"rediss://127.0.0.1:{world.server.port}"
        link = world.link(member, address=RedisAddress.parse(url))
        link.start()
        await world.until(lambda: "unreachable" in member.told)
        await stopped(world, link.stop())

    world.run(story)
    assert "no answer within 0.3 seconds (perhaps it does not speak TLS)" in member.whys[0]
