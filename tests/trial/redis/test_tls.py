"""TLS to Redis: in when everything is right, and otherwise told what is wrong."""

import datetime as dt
from pathlib import Path
from typing import Any

from OpenSSL import crypto
from twisted.internet.protocol import connectionDone
from twisted.internet.ssl import Certificate, CertificateOptions, KeyPair, trustRootFromCertificates
from twisted.protocols.portforward import ProxyClientFactory, ProxyFactory, ProxyServer
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from synrepl.transports.redis import half_link
from synrepl.transports.redis.address import RedisAddress
from tests.certificates import Authority
from tests.redis.worlds import Recorder, rdata
from tests.trial.redis.worlds import RealWorld, RedisCase
from tests.trial.waiting import eventually

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

        class Onward(ProxyClientFactory):
            """Is counted while it has a connection, or makes one."""

            noisy = False

            def startFactory(self) -> None:
                outer.open.add(self)

            def stopFactory(self) -> None:
                outer.open.discard(self)

        class Proxy(ProxyServer):
            """Knows its reactor, and is counted."""

            reactor = world.reactor
            clientProtocolFactory = Onward

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

    async def stop(self) -> None:
        """Listen no more, and wait until the last connection is gone."""
        await self._listening.stopListening()
        await eventually(lambda: not self.open, "no connection is open")


class TlsTests(RedisCase):
    """A Redis without TLS, and a port with TLS before it. `ours` is the CA that the link is told to trust."""

    def setUp(self) -> None:
        super().setUp()
        self.ours = Authority(self.home, "ours")

    async def answer(
        self,
        url: str,
        certificate: tuple[Path, Path],
        *,
        clients_of: Authority | None = None,
        is_in: bool,
    ) -> str:
        """Connect to it; gives the first reason why that did not work."""
        member = Recorder()
        world = self.world
        port = TlsRedis(world, *certificate, clients_of=clients_of)
        link = world.link(member, address=RedisAddress.parse(url.replace("PORT", str(port.port))))
        try:
            link.start()
            if is_in:
                await world.until(lambda: member.is_up() or member.whys)
                self.assertEqual([], member.whys)
                link.write(b"".join(rdata(token, 1000) for token in range(1, 1001)))
                await world.until(lambda: len(member.tokens) == 1000)
            else:
                await world.until(lambda: member.told.count("unreachable") == 4)
        finally:
            await link.stop()
            await port.stop()
        self.assertEqual(is_in, "hearing" in member.told)
        self.assertLessEqual(len(set(member.whys)), 1, member.whys)
        return member.whys[0].partition(": ")[2] if member.whys else ""

    async def is_let_in(self, names: list[str], host: str, query: str = "") -> None:
        """A Redis whose certificate is for these names is connected to."""
        url = f"rediss://{host}:PORT?ca_file={self.ours.ca_file}{query}"
        await self.answer(url, self.ours.sign(*names), is_in=True)

    async def test_a_redis_is_let_in_by_the_name_of_its_host(self) -> None:
        """As most are."""
        await self.is_let_in(["localhost"], "localhost")

    async def test_a_redis_is_let_in_by_its_address(self) -> None:
        """Where there are no names."""
        await self.is_let_in(["127.0.0.1"], "127.0.0.1")

    async def test_a_redis_is_let_in_by_the_name_that_it_is_expected_to_have(self) -> None:
        """The address is that of a tunnel, or of a balancer."""
        await self.is_let_in(["redis.example"], "127.0.0.1", "&server_name=redis.example")

    async def test_a_redis_is_let_in_by_a_wildcard(self) -> None:
        """One certificate for all of them."""
        await self.is_let_in(["*.redis.example", "other"], "localhost", "&server_name=a.redis.example")

    async def test_another_name_is_refused(self) -> None:
        """Though the CA is the right one: anybody may have a certificate of it."""
        url = f"rediss://localhost:PORT?ca_file={self.ours.ca_file}"
        why = await self.answer(url, self.ours.sign("redis.example", "10.0.0.1"), is_in=False)

        self.assertEqual("TLS: the certificate is for redis.example, 10.0.0.1, not for localhost", why)

    async def test_another_address_is_refused(self) -> None:
        """A name that looks like an address is none."""
        url = f"rediss://127.0.0.1:PORT?ca_file={self.ours.ca_file}"
        why = await self.answer(url, self.ours.sign("localhost", "10.0.0.1"), is_in=False)

        self.assertEqual("TLS: the certificate is for localhost, 10.0.0.1, not for 127.0.0.1", why)

    async def test_another_ca_is_refused(self) -> None:
        """With the file that it is not in."""
        theirs = Authority(self.home, "theirs")
        url = f"rediss://localhost:PORT?ca_file={self.ours.ca_file}"
        why = await self.answer(url, theirs.sign("localhost"), is_in=False)

        self.assertEqual(
            f"TLS: the certificate is signed by a CA that is not trusted (it is not in {self.ours.ca_file})",
            why,
        )

    async def test_a_ca_that_the_system_does_not_know_is_refused(self) -> None:
        """And it is told how to make it known."""
        why = await self.answer("rediss://localhost:PORT", self.ours.sign("localhost"), is_in=False)

        self.assertEqual("TLS: the certificate is signed by a CA that is not trusted (name a ca_file)", why)

    async def test_an_expired_certificate_is_refused(self) -> None:
        """With the day."""
        url = f"rediss://localhost:PORT?ca_file={self.ours.ca_file}"
        why = await self.answer(url, self.ours.sign("localhost", end=LONG_AGO), is_in=False)

        self.assertEqual("TLS: the certificate expired on 2021-03-04", why)

    async def test_a_certificate_of_the_future_is_refused(self) -> None:
        """Most often the clock here is wrong."""
        url = f"rediss://localhost:PORT?ca_file={self.ours.ca_file}"
        why = await self.answer(url, self.ours.sign("localhost", start=FAR_AHEAD), is_in=False)

        self.assertEqual("TLS: the certificate is not valid before 2119-03-04", why)

    async def test_a_client_certificate_is_shown(self) -> None:
        """To a Redis that asks for one."""
        cert_file, key_file = self.ours.sign("worker")
        url = f"rediss://localhost:PORT?ca_file={self.ours.ca_file}&cert_file={cert_file}&key_file={key_file}"

        await self.answer(url, self.ours.sign("localhost"), clients_of=self.ours, is_in=True)

    async def test_a_missing_client_certificate_is_reported(self) -> None:
        """The alert of TLS comes only after a handshake that looked good."""
        url = f"rediss://localhost:PORT?ca_file={self.ours.ca_file}"
        why = await self.answer(url, self.ours.sign("localhost"), clients_of=self.ours, is_in=False)

        self.assertEqual(
            "TLS: Redis wants a certificate of its clients: name a cert_file and a key_file", why
        )

    async def test_a_client_certificate_of_another_ca_is_reported(self) -> None:
        """So that nobody looks for the fault in the one of Redis."""
        cert_file, key_file = Authority(self.home, "theirs").sign("worker")
        url = f"rediss://localhost:PORT?ca_file={self.ours.ca_file}&cert_file={cert_file}&key_file={key_file}"
        why = await self.answer(url, self.ours.sign("localhost"), clients_of=self.ours, is_in=False)

        self.assertIn("TLS: Redis refuses our certificate", why)

    async def test_a_sentinel_that_is_refused_is_named(self) -> None:
        """With what the others said: the certificate may be that of the one which matters least."""
        url = f"redis+sentinel://127.0.0.1:1,localhost:PORT/main?tls=true&ca_file={self.ours.ca_file}"
        why = await self.answer(url, self.ours.sign("redis.example"), is_in=False)

        self.assertTrue(why.startswith("127.0.0.1:1: connection refused; localhost:"), why)
        self.assertTrue(why.endswith(": TLS: the certificate is for redis.example, not for localhost"), why)

    async def test_bad_files_are_reported(self) -> None:
        """By their names."""
        empty = self.home / "empty"
        empty.write_text("")
        cert_file, _ = self.ours.sign("worker")
        _, other_key = self.ours.sign("other")
        missing = self.home / "none"
        known = f"cert_file={cert_file}&ca_file={self.ours.ca_file}"
        whys = {
            f"ca_file={missing}": f"cannot read the certificates in {missing}: No such file or directory",
            f"ca_file={empty}": f"{empty} contains no certificate in PEM",
            f"{known}&key_file={empty}": f"{empty} contains no PEM key that is readable without a passphrase",
            f"{known}&key_file={other_key}": f"the key in {other_key} does not belong to the certificate",
        }
        members = {query: Recorder() for query in whys}
        links = []
        for query, member in members.items():
            address = RedisAddress.parse(f"rediss://localhost:1?{query}")
            links.append(self.world.link(member, address=address))
            links[-1].start()

        await self.world.until(lambda: all(member.told for member in members.values()))
        for link in links:
            await link.stop()

        self.assertEqual(whys, {query: member.whys[0] for query, member in members.items()})

    async def test_a_certificate_for_too_much_is_refused(self) -> None:
        """As one for everything below a top-level domain."""
        url = f"rediss://127.0.0.1:PORT?ca_file={self.ours.ca_file}&server_name=redis.example"
        why = await self.answer(url, self.ours.sign("*.example"), is_in=False)

        self.assertIn("has no valid name", why)

    async def test_a_redis_with_tls_is_told_to_whom_speaks_without(self) -> None:
        """It answers with an alert of TLS, or, as the server of this test, not at all."""
        why = await self.answer("redis://127.0.0.1:PORT", self.ours.sign("localhost"), is_in=False)

        self.assertIn("TLS: use rediss://", why)

    async def test_a_redis_without_tls_is_reported(self) -> None:
        """It waits for the end of a line, and we for its certificate."""
        self.patch(half_link, "CONNECT_SECONDS", 0.3)
        member = Recorder()
        address = RedisAddress.parse(f"rediss://127.0.0.1:{self.world.server.port}")
        link = self.world.link(member, address=address)

        link.start()
        await self.world.until(lambda: "unreachable" in member.told)
        await link.stop()

        self.assertIn("no answer within 0.3 seconds (perhaps it does not speak TLS)", member.whys[0])
