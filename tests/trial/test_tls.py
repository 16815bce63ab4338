"""TLS on real sockets: in when everything is right; otherwise one line on each side says what is wrong."""

import datetime as dt
from pathlib import Path
from typing import Any, ClassVar

from OpenSSL import SSL
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from synrepl.errors import ConfigError
from synrepl.transports.credentials import certified_name, is_local
from synrepl.transports.endpoints import client_endpoint, server_endpoint
from synrepl.transports.tls_endpoints import TlsFailed, TlsServerEndpoint
from tests.certificates import Authority

LONG_AGO = dt.datetime(2021, 3, 4, tzinfo=dt.UTC)
LONG_AGO_TOO = dt.datetime(2020, 3, 4, tzinfo=dt.UTC)


class Echo(Protocol):
    """Sends back what it hears."""

    made: ClassVar[list["Echo"]] = []
    name: str | None = ""

    def connectionMade(self) -> None:
        self.made.append(self)
        self.name = certified_name(self.transport)

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[union-attr]


class Caller(Protocol):
    """Says hello, and keeps the first answer, or why there was none."""

    def __init__(self) -> None:
        self.answer: Deferred[bytes] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(b"hello")  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        if not self.answer.called:
            self.answer.callback(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.answer.called:
            self.answer.errback(reason)


class TlsTests(TestCase):
    """A listener with TLS, and clients of all kinds."""

    timeout = 30.0

    def setUp(self) -> None:
        self.home = Path(self.mktemp())
        self.home.mkdir()
        self.ours = Authority(self.home, "ours")
        self.theirs = Authority(self.home, "theirs")
        self.lines: list[str] = []
        Echo.made = []
        observer: Any = self.observe
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def observe(self, event: Any) -> None:
        """Keeps the log lines of listeners."""
        if event.get("log_namespace", "").endswith("tls_endpoints.TlsServerEndpoint"):
            self.lines.append(event["log_format"].format(**event))

    async def listen(self, certificate: tuple[Path, Path], more: str = "") -> int:
        """Listens with this certificate; gives the port."""
        endpoint = server_endpoint(
            reactor,
            f"tls:0:interface=127.0.0.1:certificate={certificate[0]}:privateKey={certificate[1]}{more}",
        )
        assert isinstance(endpoint, TlsServerEndpoint)
        self.endpoint = endpoint
        port: Any = await endpoint.listen(Factory.forProtocol(Echo))
        self.addCleanup(port.stopListening)
        number: int = port.getHost().port
        return number

    async def call(self, description: str) -> bytes:
        """What comes back on a connection to there. Raises what connecting or hearing raises."""
        caller: Any = await client_endpoint(reactor, description).connect(Factory.forProtocol(Caller))
        try:
            answer: bytes = await caller.answer
            return answer
        finally:
            caller.transport.abortConnection()

    async def refused(self, description: str) -> str:
        """Why that did not work, in one line."""
        try:
            await self.call(description)
        except Exception as error:
            return str(error)
        raise self.failureException("it worked")

    def trusting(self, port: int, more: str = "") -> str:
        """A client that trusts our CA."""
        return f"tls:localhost:{port}:trustRoots={self.ours.ca_file}{more}"

    @property
    def names(self) -> list[str | None]:
        """Whom the certificates of clients name that were let in."""
        return [echo.name for echo in Echo.made]

    @staticmethod
    def showing(certificate: tuple[Path, Path]) -> str:
        """A client that shows this certificate."""
        return f":certificate={certificate[0]}:privateKey={certificate[1]}"

    # -- the server's certificate --------------------------------------------------------------------------

    async def test_the_right_server_is_spoken_to(self) -> None:
        """By its name, its address, or the name that it is expected to have."""
        port = await self.listen(self.ours.sign("localhost", "127.0.0.1", "log.example"))

        self.assertEqual(b"hello", await self.call(self.trusting(port)))
        address = f"tls:127.0.0.1:{port}:trustRoots={self.ours.ca_file}"
        self.assertEqual(b"hello", await self.call(address))
        self.assertEqual(b"hello", await self.call(address + ":hostname=log.example"))
        self.assertEqual([None] * 3, self.names)
        self.assertTrue(is_local(Echo.made[0].transport.getPeer()))  # type: ignore[union-attr]

    async def test_a_server_of_another_ca_is_refused(self) -> None:
        """Both sides say so."""
        port = await self.listen(self.theirs.sign("localhost"))

        why = await self.refused(self.trusting(port))

        self.assertIn("TLS: the certificate is signed by a CA that is not trusted", why)
        self.assertIn(str(self.ours.ca_file), why)
        self.assertEqual([], Echo.made)

    async def test_a_server_of_another_name_is_refused(self) -> None:
        """Anybody may have a certificate of this CA."""
        port = await self.listen(self.ours.sign("other.example"))

        self.assertEqual(
            "TLS: the certificate is for other.example, not for localhost",
            await self.refused(self.trusting(port)),
        )

    async def test_a_server_whose_certificate_has_expired_is_refused(self) -> None:
        """And the day is said."""
        port = await self.listen(self.ours.sign("localhost", start=LONG_AGO_TOO, end=LONG_AGO))

        self.assertEqual(
            "TLS: the certificate expired on 2021-03-04", await self.refused(self.trusting(port))
        )

    async def test_a_server_without_tls_is_told_apart(self) -> None:
        """The operator forgot it on one side."""
        port: Any = await server_endpoint(reactor, "tcp:0:interface=127.0.0.1").listen(
            Factory.forProtocol(Echo)
        )
        self.addCleanup(port.stopListening)

        why = await self.refused(self.trusting(port.getHost().port))

        self.assertIn("the peer does not speak it (say tcp: in place of tls:", why)

    async def test_two_sides_without_a_common_cipher_say_so(self) -> None:
        """In the words of OpenSSL, which has many more than have words of ours."""
        port = await self.listen(self.ours.sign("localhost"))
        context = self.endpoint.tls._context
        context.set_options(SSL.OP_NO_TLSv1_3)
        context.set_cipher_list(b"ECDHE-RSA-AES128-GCM-SHA256")  # our certificate is not of RSA

        self.assertRegex(await self.refused(self.trusting(port)), r"^TLS: .*alert handshake failure$")
        self.assertRegex(self.lines[0], r"^refused 127\.0\.0\.1:\d+: TLS: no shared cipher$")

    async def test_a_file_that_cannot_be_read_is_a_mistake_of_this_side(self) -> None:
        """No retry helps: `synrepl tail` ends with it."""
        endpoint = client_endpoint(reactor, "tls:localhost:1:trustRoots=no-such-file")

        with self.assertRaises(TlsFailed) as raised:
            await endpoint.connect(Factory.forProtocol(Caller))

        self.assertIn("cannot read the certificates in no-such-file", str(raised.exception))
        self.assertEqual("tls", raised.exception.code)

    # -- the client's certificate --------------------------------------------------------------------------

    async def test_a_client_with_a_certificate_is_let_in_by_name(self) -> None:
        """The name is what its rights are looked up by."""
        port = await self.listen(self.ours.sign("localhost"), f":trustRoots={self.theirs.ca_file}")
        shown = self.theirs.sign("laptop", common_name="laptop")

        self.assertEqual(b"hello", await self.call(self.trusting(port, self.showing(shown))))
        self.assertEqual(["laptop"], self.names)

    async def test_a_client_without_a_certificate_is_refused(self) -> None:
        """With TLS 1.3 it learns so after its own handshake."""
        port = await self.listen(self.ours.sign("localhost"), f":trustRoots={self.theirs.ca_file}")

        why = await self.refused(self.trusting(port))

        self.assertIn("the server wants a certificate of its clients: name one with certificate=", why)
        self.assertEqual([], Echo.made)
        self.assertEqual(1, len(self.lines), self.lines)
        self.assertIn("the client sent no certificate; this listener requires one", self.lines[0])
        self.assertRegex(self.lines[0], r"^refused 127\.0\.0\.1:\d+: ")

    async def test_a_client_of_another_ca_is_refused(self) -> None:
        """The listener's log names the file."""
        port = await self.listen(self.ours.sign("localhost"), f":trustRoots={self.theirs.ca_file}")

        why = await self.refused(self.trusting(port, self.showing(self.ours.sign("laptop"))))

        self.assertIn("the server refuses our certificate", why)
        self.assertIn("the client's certificate is signed by a CA that is not trusted", self.lines[0])
        self.assertIn(str(self.theirs.ca_file), self.lines[0])

    async def test_a_client_whose_certificate_has_expired_is_refused(self) -> None:
        """And the day is said."""
        port = await self.listen(self.ours.sign("localhost"), f":trustRoots={self.theirs.ca_file}")
        shown = self.theirs.sign("laptop", start=LONG_AGO_TOO, end=LONG_AGO)

        why = await self.refused(self.trusting(port, self.showing(shown)))

        self.assertIn("the server refuses our certificate", why)
        self.assertIn("the client's certificate expired on 2021-03-04", self.lines[0])

    async def test_a_client_without_tls_is_told_apart(self) -> None:
        """One line, and no protocol ever sees it."""
        port = await self.listen(self.ours.sign("localhost"))

        await self.assertFailure(Deferred.fromCoroutine(self.call(f"tcp:127.0.0.1:{port}")), ConnectionDone)

        self.assertIn("TLS: the client does not speak it", self.lines[0])
        self.assertEqual([], Echo.made)

    # -- files ---------------------------------------------------------------------------------------------

    async def test_new_certificates_are_used_without_a_restart(self) -> None:
        """Broken ones are refused, and the old ones stay."""
        expired = self.ours.sign("localhost", start=LONG_AGO_TOO, end=LONG_AGO)
        port = await self.listen(expired)
        await self.refused(self.trusting(port))
        for old, new in zip(expired, self.ours.sign("localhost"), strict=True):
            old.write_bytes(new.read_bytes())

        self.endpoint.tls.reload()

        self.assertEqual(b"hello", await self.call(self.trusting(port)))
        expired[0].write_text("rubbish")
        self.assertRaises(ConfigError, self.endpoint.tls.reload)
        self.assertEqual(b"hello", await self.call(self.trusting(port)))

    def test_what_makes_no_sense_is_said_when_settings_are_read(self) -> None:
        """Not at the first connection."""
        certificate, key = self.ours.sign("localhost")
        for description, why in [
            ("tls:9092", "needs certificate= and privateKey="),
            (f"tls:9092:certificate={self.home}/none.pem:privateKey={key}", "cannot read"),
            (f"tls:9092:certificate={key}:privateKey={key}", "contains no certificate"),
            (f"tls:9092:certificate={self.ours.ca_file}:privateKey={key}", "does not belong"),
            (
                f"tls:9092:certificate={certificate}:privateKey={key}:trustRoots={key}",
                "contains no certificate",
            ),
        ]:
            with self.assertRaisesRegex(ConfigError, why):
                server_endpoint(reactor, description)
