"""Requests of Redis clients, over connections in memory, as they and Synapse make them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from synrepl.base.access import IssuedKey, Key, Keyring, Right
from synrepl.base.key_records import make_record, make_secret
from synrepl.base.metrics import Metrics
from synrepl.channel import publisher_limits
from synrepl.channel.resp import cache, cache_commands
from synrepl.channel.resp.connection import RespConnection
from synrepl.channel.resp.server import RespFactory, RespServer
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.served_link import ServedLink

READER = Key(name="reader", secret="r", rights=frozenset({Right.READ}))
WRITER = Key(name="writer", secret="w", rights=frozenset({Right.WRITE}))
FULL = Key(name="full", secret="f")
PART = Key(name="part", secret="p", streams=frozenset({"events"}))

NO_PASSWORD = (
    "-ERR AUTH <password> called without any password configured for the default user. Are you sure your"
    " configuration is correct?"
)


class Client:
    """A client at the port, and what it is answered."""

    transport: Any

    def __init__(self, site: "Site", host: str = "127.0.0.1", *, certificate: str = "") -> None:
        self._clock = site.clock
        self.protocol = RespFactory(site.server).buildProtocol(None)
        self.transport = StringTransport(peerAddress=IPv4Address("TCP", host, 5))
        self.transport.abortConnection = self.transport.loseConnection
        if certificate:
            subject = SimpleNamespace(CN=certificate)
            self.transport.getPeerCertificate = lambda: SimpleNamespace(get_subject=lambda: subject)
        self.protocol.makeConnection(self.transport)

    def say(self, data: bytes) -> str:
        """Send bytes; return the answer."""
        self.protocol.dataReceived(data)
        return self.heard()

    def heard(self) -> str:
        """What is sent once the turns of the reactor have passed that it takes."""
        for _ in range(20):
            self._clock.advance(0)
        found: str = self.transport.value().decode()
        self.transport.clear()
        return found

    def ask(self, *words: str) -> str:
        """Send a request; return the answer."""
        parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        return self.say(f"*{len(words)}\r\n{parts}".encode())

    @property
    def is_closed(self) -> bool:
        return bool(self.transport.disconnecting)


class Site:
    """The port of a daemon, with a channel."""

    def __init__(self, *keys: Key) -> None:
        self.clock = Clock()
        self.ingested: list[bytes] = []
        self.link = SimpleNamespace(is_full=False)
        self.metrics = Metrics(CollectorRegistry())
        self.keyring = Keyring(keys=keys)
        self.server = RespServer(self.clock, keys=self.keyring, metrics=self.metrics)
        self.serve()

    def serve(self) -> None:
        """Serve a new channel."""
        self.channel = ServedChannel(
            self.clock,
            "hs",
            is_ephemeral=lambda stream: stream == "typing",
            metrics=self.metrics,
        )
        self.channel.use(ingest=self.ingested.extend)
        self.server.use(self.channel, link=cast(ServedLink, self.link))

    def client(self, *login: str) -> Client:
        """A client that has logged in."""
        client = Client(self)
        if login:
            assert client.ask("AUTH", *login) == "+OK\r\n"
        return client


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("PING", "+PONG"),
        ("ping hello", "$5\r\nhello"),
        ("SELECT 15", "+OK"),
        ("SELECT 16", "-ERR DB index is out of range"),
        ("SELECT x", "-ERR value is not an integer or out of range"),
        ("GET missing", "$-1"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("SET k v", "+OK"),
        ("SET k v EX 10", "+OK"),
        ("SET k v px 10", "+OK"),
        ("SET k v PX 0", "-ERR invalid expire time in 'set' command"),
        ("SET k v NX", "-ERR syntax error: SET takes EX or PX with a number, and nothing else"),
        ("CLIENT SETNAME me", "+OK"),
        ("CLIENT SETINFO lib-name redis-py", "+OK"),
        ("CLIENT", "-ERR wrong number of arguments for 'client' command"),
        ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command"),
        ("HELLO 1", "-NOPROTO unsupported protocol version"),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range"),
        ("HELLO 3 AUTH x", "-ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 3 SETNAME", "-ERR Syntax error in HELLO option 'SETNAME'"),
        ("FLUSHALL", "-ERR unknown command 'FLUSHALL': this is synrepl, and no Redis"),
        ("PUBLISH hs x", ":0"),
        ("PUBSUB NUMSUB hs other", "*4\r\n$2\r\nhs\r\n:0\r\n$5\r\nother\r\n:0"),
        ("PUBSUB CHANNELS", "-ERR unknown subcommand 'CHANNELS': PUBSUB has NUMSUB here"),
        ("PUBLISH other x", "-NOPERM this port has the channels of hs, and not other"),
        ("SUBSCRIBE hsx", "-NOPERM this port has the channels of hs, and not hsx"),
        ("UNSUBSCRIBE", "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0"),
        ("AUTH x", NO_PASSWORD),
    ],
)
def test_answers_are_those_of_redis(words: str, answer: str) -> None:
    assert answer + "\r\n" == Site().client().ask(*words.split(" "))


def test_hello_says_that_this_is_no_redis() -> None:
    assert "synrepl" in Site().client().ask("HELLO")


def test_values_are_kept_by_database_until_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_commands, "MAX_VALUE", 10)
    site = Site()
    client = site.client()
    client.ask("SET", "k", "v", "PX", "1500")
    assert client.ask("GET", "k") == "$1\r\nv\r\n"
    client.ask("SELECT", "1")
    assert client.ask("GET", "k") == "$-1\r\n"
    client.ask("SELECT", "0")
    site.clock.advance(1.5)
    assert client.ask("GET", "k") == "$-1\r\n"
    assert client.ask("SET", "k", "v" * 11) == "-ERR the value has more than 10 bytes\r\n"
    assert cache.MAX_VALUE == 1024 * 1024


def test_a_subscriber_gets_what_others_publish() -> None:
    """Synapse has one connection that subscribes and one for everything else."""
    site = Site()
    subscriber, other = site.client(), site.client()
    subscribed = subscriber.ask("SUBSCRIBE", "hs/USER_IP", "hs")
    answer = other.say(
        b"*3\r\n$7\r\nPUBLISH\r\n$2\r\nhs\r\n$10\r\nREPLICATE \r\n"
        b"*3\r\n$7\r\nPUBLISH\r\n$10\r\nhs/USER_IP\r\n$9\r\nUSER_IP x\r\n*1\r\n$4\r\nPING\r\n"
    )

    confirmations = [("hs/USER_IP", 1), ("hs", 2)]
    expected = "".join(
        f"*3\r\n$9\r\nsubscribe\r\n${len(name)}\r\n{name}\r\n:{count}\r\n" for name, count in confirmations
    )
    assert expected == subscribed
    assert answer == ":1\r\n:1\r\n+PONG\r\n"
    received = subscriber.transport.value()
    assert b"$10\r\nREPLICATE \r\n" in received
    assert b"$9\r\nUSER_IP x\r\n" in received
    assert [b"REPLICATE "] == site.ingested
    assert subscriber.ask("PING").endswith("*2\r\n$4\r\npong\r\n$0\r\n\r\n")
    assert "only SUBSCRIBE" in subscriber.ask("GET", "k")
    assert ":1\r\n" in subscriber.ask("UNSUBSCRIBE", "hs")
    assert ":0\r\n" in subscriber.ask("UNSUBSCRIBE")
    assert subscriber.ask("GET", "k") == "$-1\r\n"
    assert 0 == site.channel.count(b"hs") == site.channel.count(b"hs/USER_IP")


def test_the_confirmation_comes_after_earlier_answers_and_before_positions() -> None:
    site = Site()
    site.client().ask("PUBLISH", "hs", "POSITION events w 5 5")
    client = site.client()

    answer = client.say(b"PING\r\nSUBSCRIBE hs\r\n")

    order = [answer.index(text) for text in ("+PONG", "subscribe", "POSITION events w 5 5")]
    assert sorted(order) == order


def test_channels_are_bounded() -> None:
    names = [f"hs/{n}" for n in range(17)]
    assert Site().client().ask("SUBSCRIBE", *names) == "-ERR a client may subscribe to 16 channels\r\n"


def test_a_name_of_a_channel_is_bounded() -> None:
    """Who may only read could fill the memory with them."""
    client, name = Site().client(), "hs/" + "x" * 253
    refused = "-ERR the name of a channel has at most 255 bytes\r\n"
    assert client.ask("SUBSCRIBE", name) == client.ask("PUBLISH", name, "x") == refused
    assert client.ask("PUBLISH", name[:-1], "x") == ":0\r\n"


def test_a_full_channel_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes next cannot publish; it is over when those who filled it are gone."""
    monkeypatch.setattr(publisher_limits, "MAX_OF_KEY", 1)
    site = Site(FULL, WRITER)
    client = site.client("full", "f")
    client.ask("PUBLISH", "hs", "POSITION events w 5 5")
    assert site.server.problems() == []
    assert "the key full has 1 streams" in site.client("f").ask("PUBLISH", "hs", "POSITION events v 5 5")
    writer = site.client("w")
    assert writer.ask("PUBLISH", "hs", "POSITION events v 5 5") == ":0\r\n"
    assert ["the key full has 1 streams" in problem.text for problem in site.server.problems()] == [True]

    client.protocol.connectionLost()
    writer.protocol.connectionLost()
    assert site.server.problems() == []


def test_what_is_published_counts_for_the_key_of_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may authenticate again."""
    site = Site(FULL, WRITER)
    client = site.client("f")
    client.ask("PUBLISH", "hs", "POSITION events w 5 5")
    client.say(
        b"PING\r\n*3\r\n$7\r\nPUBLISH\r\n$2\r\nhs\r\n$9\r\nREPLICATE\r\n*2\r\n$4\r\nAUTH\r\n$1\r\nw\r\n"
    )
    assert site.ingested[-1] == b"REPLICATE"
    client.ask("PUBLISH", "hs", "RDATA events w 6 [1]")
    assert site.channel.held_back == 1
    client.protocol.connectionLost()
    assert site.channel.limits.count == 0


def test_rubbish_ends_the_connection() -> None:
    site = Site()
    client = site.client()
    assert client.say(b"*400000000\r\n") == "-ERR Protocol error: invalid multibulk length\r\n"
    assert client.is_closed
    assert client.say(b"PING\r\n") == ""


PUBLISHED = b"*3\r\n$7\r\nPUBLISH\r\n$2\r\nhs\r\n$9\r\nREPLICATE\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"


@pytest.mark.parametrize(
    "line",
    [
        "POST / HTTP/1.1",
        "GET /k HTTP/1.1",
        "PING / HTTP/1.1",
        "set x http/1.1",
        "SET k HTTP/2.0",
        "PRI * HTTP/2.0",
        "Host: localhost",
        "PING: x",
        ":",
        "RDATA events w 5 [1]",
        "FLUSHALL",
        "PROXY TCP4 127.0.0.1 127.0.0.1 1 2",
        "DEL /'k' HTTP/1.1",
        'SET /"k HTTP/1.1',
        'SET "k: HTTP/1.1',
        "'SET' k v",
        "SET 'k",
    ],
)
@pytest.mark.parametrize("keys", [[], [FULL]], ids=["open", "keys"])
def test_a_line_of_no_client_closes_the_port(line: str, keys: list[Key]) -> None:
    """A web page can send such a line, and what it likes after it."""
    site = Site(*keys)
    client = site.client()
    before = b"PING\r\n" if not keys else b""

    answer = client.say(before + line.encode() + b"\r\n" + PUBLISHED)

    assert answer.startswith("+PONG\r\n-ERR Protocol error: " if before else "-ERR Protocol error: ")
    assert answer.count("\r\n") == 1 + bool(before)
    assert client.is_closed
    assert client.say(PUBLISHED) == ""
    assert site.ingested == []
    assert len(site.server.cache) == 0


def test_an_array_with_an_unknown_command_is_answered() -> None:
    """As Redis does: such as CLIENT SETINFO of a newer client, or COMMAND DOCS of redis-cli."""
    client = Site().client()
    assert client.ask("POST", "/", "HTTP/1.1").startswith("-ERR unknown command 'POST'")
    assert client.ask("PING") == "+PONG\r\n"


def test_what_came_before_rubbish_is_published() -> None:
    """It was answered."""
    site = Site()
    assert site.client().say(PUBLISHED + b"*x\r\n").startswith(":0\r\n+OK\r\n-ERR Protocol error")
    assert site.ingested == [b"REPLICATE"]


def test_a_publisher_that_ends_is_missed() -> None:
    """Its next lines are not passed before its POSITION."""
    site = Site()
    subscriber, writer = site.client(), site.client()
    subscriber.ask("SUBSCRIBE", "hs")
    writer.ask("PUBLISH", "hs", "POSITION events w 5 5")
    writer.protocol.connectionLost()
    site.client().ask("PUBLISH", "hs", "RDATA events w 9 [1]")

    assert b"RDATA" not in subscriber.transport.value()
    assert 1 == site.channel.held_back


@pytest.mark.parametrize(
    ("login", "words", "answer"),
    [
        (["w"], "SUBSCRIBE hs", "-NOPERM"),
        (["r"], "SUBSCRIBE hs", "*3"),
        (["p"], "SUBSCRIBE hs", "-NOPERM"),
        (["r"], "PUBLISH hs x", "-NOPERM"),
        (["w"], "PUBLISH hs x", ":0"),
        (["r"], "SET k v", "-NOPERM"),
        (["r"], "GET k", "$-1"),
        (["w"], "GET k", "-NOPERM"),
        # The cache has entries of all rooms.
        (["p"], "GET k", "-NOPERM the key part may not see all streams"),
        (["p"], "SET k v", "-NOPERM the key part may not see all streams"),
        (["full", "f"], "PUBLISH hs x", ":0"),
        (["default", "f"], "PUBLISH hs x", ":0"),
    ],
)
def test_each_request_takes_its_right(login: list[str], words: str, answer: str) -> None:
    client = Site(READER, WRITER, FULL, PART).client(*login)

    assert client.ask(*words.split()).startswith(answer)


def test_a_key_publishes_under_its_own_names() -> None:
    """Rows of another process would be believed, and its own dropped as repeated."""
    site = Site(Key(name="worker", secret="s", instances=frozenset({"w1", "w2"})))
    client = site.client("s")
    lines = [
        "POSITION events w1 1 1",
        "RDATA events w2 2 [1]",
        "REPLICATE ",
        "RDATA events w3 2 [1]",
        "POSITION",
    ]
    lines += ["POSITION events w3 1 1", "POSITION events"]

    answers = [client.ask("PUBLISH", "hs", line)[:1] for line in lines]

    assert ":::-:--" == "".join(answers)
    assert 3 == site.server.refused
    assert "may not publish as w3" in client.ask("PUBLISH", "hs", lines[3])
    # Synapse takes a line of a sub-channel as one of the channel.
    assert "may not publish as w3" in client.ask("PUBLISH", "hs/USER_IP", lines[3])


@pytest.mark.parametrize("line", [b"", b"a\nb", b"a\rb", b"\xff\xfe"])
@pytest.mark.parametrize("channel", [b"hs", b"hs/USER_IP"])
def test_what_no_daemon_can_pass_on_is_refused(line: bytes, channel: bytes) -> None:
    """An empty line ended the connection of a replica to its primary."""
    site = Site()
    words = (b"PUBLISH", channel, line)
    request = b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    answer = site.client().say(request)
    assert answer == "-ERR a message must be one line of UTF-8 text, and not empty\r\n"
    assert site.ingested == []


@pytest.mark.parametrize("channel", ["hs/", "hs/a b", "hs/a\nb"])
def test_a_sub_channel_has_a_name(channel: str) -> None:
    assert "must be one word" in Site().client().ask("PUBLISH", channel, "x")


def test_an_issued_key_publishes_under_its_own_names() -> None:
    """Until it is revoked and made again with others: then its holder proves the new one."""
    site, secrets = Site(FULL), [make_secret(), make_secret()]
    keys = [
        IssuedKey(
            name="worker", rights=(Right.WRITE,), instances=(name,), record=make_record(secret), made_ms=0
        )
        for name, secret in zip(("w1", "w3"), secrets, strict=True)
    ]
    site.keyring.replace_issued(keys[:1])
    client = site.client("worker", f"worker.{secrets[0]}")
    said = [client.ask("PUBLISH", "hs", f"RDATA events {writer} 2 [1]") for writer in ("w1", "w3")]
    site.keyring.replace_issued(keys[1:])
    site.server.recheck()
    again = site.client("worker", f"worker.{secrets[1]}").ask("PUBLISH", "hs", "RDATA events w3 2 [1]")

    assert [":0\r\n", "-NOPERM the key worker may not publish as w3\r\n"] == said
    assert client.is_closed
    assert again == ":0\r\n"
    assert 1 == site.server.refused


def test_who_has_not_authenticated_gets_nothing() -> None:
    site = Site(FULL)
    client = site.client()
    wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n"

    assert client.ask("GET", "k") == "-NOAUTH Authentication required.\r\n"
    assert client.ask("HELLO").startswith(
        "-NOAUTH HELLO must be called with the client already authenticated"
    )
    assert [client.ask("AUTH", "x"), client.ask("AUTH", "reader", "f")] == [wrong, wrong]
    assert "proto" in client.ask("HELLO", "2", "AUTH", "default", "f")
    late = site.client()
    site.clock.advance(30)
    assert late.transport.value() == b"-ERR authenticate within 30 seconds\r\n"
    assert late.is_closed
    assert not client.is_closed
    assert "unauthenticated multibulk length" in site.client().say(b"*11\r\n")


def test_a_revoked_key_ends_its_connections() -> None:
    site = Site(FULL, READER)
    full, reader = site.client("f"), site.client("r")

    site.keyring.replace(Keyring(keys=[FULL]))
    site.server.recheck()

    assert [full.is_closed, reader.is_closed] == [False, True]
    assert "your key was revoked" in reader.transport.value().decode()


@pytest.mark.parametrize("left", [None, frozenset({Right.READ})], ids=["removed", "fewer-rights"])
def test_a_revoked_certificate_ends_its_connections(left: frozenset[Right] | None) -> None:
    """It would go on publishing for as long as it is connected, which is months."""
    site = Site(FULL, Key(name="w1", secret=None), Key(name="w2", secret=None))
    revoked, kept = (Client(site, certificate=name) for name in ("w1", "w2"))
    assert [client.ask("PUBLISH", "hs", "x") for client in (revoked, kept)] == [":0\r\n"] * 2

    changed = [] if left is None else [Key(name="w1", secret=None, rights=left)]
    site.keyring.replace(Keyring(keys=[FULL, Key(name="w2", secret=None), *changed]))
    site.server.recheck()

    assert [revoked.is_closed, kept.is_closed] == [True, False]
    assert "your key was revoked or changed" in revoked.transport.value().decode()


def test_a_first_key_ends_the_connections_of_those_without() -> None:
    site = Site()
    client = site.client()
    assert client.ask("PUBLISH", "hs", "x") == ":0\r\n"

    site.keyring.replace(Keyring(keys=[FULL]))
    site.server.recheck()

    assert client.is_closed


def test_without_keys_another_machine_may_read_and_write() -> None:
    """As over HTTP: --insecure says that this is meant."""
    assert Client(Site(), host="10.0.0.1").ask("PUBLISH", "hs", "x") == ":0\r\n"


def test_a_daemon_without_a_channel_serves_nobody() -> None:
    """Such as a fenced one. HAProxy's check is PING: it goes to another daemon then."""
    site = Site()
    client = site.client()
    client.ask("SUBSCRIBE", "hs")
    site.server.close("this daemon is fenced")

    assert client.is_closed
    assert client.transport.value().startswith(b"-LOADING this daemon is fenced")
    for words in (["PING"], ["SUBSCRIBE", "hs"], ["PUBLISH", "hs", "x"]):
        refused = site.client()
        assert refused.ask(*words).startswith("-LOADING")
        # Synapse does not subscribe again on a connection that refused it once.
        assert refused.is_closed
    site.serve()
    assert site.client().ask("PING") == "+PONG\r\n"


def test_a_client_that_does_not_read_is_not_read() -> None:
    """What it asks for would fill the memory."""
    site = Site()
    client = site.client()
    protocol = client.protocol
    assert isinstance(protocol, RespConnection)
    protocol.pauseProducing()
    assert client.transport.producerState == "paused"
    protocol.resumeProducing()
    assert client.transport.producerState == "producing"


def test_publishers_wait_for_the_log() -> None:
    site = Site()
    client = site.client()
    site.link.is_full = True
    client.ask("PUBLISH", "hs", "x")
    assert client.transport.producerState == "paused"

    site.link.is_full = False
    site.server.release()
    assert client.transport.producerState == "producing"
