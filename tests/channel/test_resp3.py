"""Clients that speak RESP3, which most do by default: their greeting, and what looks different then."""

from collections.abc import Sequence

import pytest

from synrepl.base.version import daemon_version
from synrepl.channel import resp_codec as resp
from tests.channel.test_connection import FULL, READER, Client, Site


def bulk(*words: str) -> str:
    """These words as a reply has them."""
    return "".join(f"${len(word)}\r\n{word}\r\n" for word in words)


def hello(protocol: int, number: int) -> str:
    """The answer to HELLO."""
    head = "%7\r\n" if protocol == 3 else "*14\r\n"
    start = bulk("server", "synrepl", "version", daemon_version(), "proto") + f":{protocol}\r\n"
    rest = bulk("id") + f":{number}\r\n" + bulk("mode", "standalone", "role", "master", "modules") + "*0\r\n"
    return head + start + rest


def push(kind: str, name: str | None, count: int, head: str = ">") -> str:
    """A confirmation."""
    named = "_\r\n" if name is None else bulk(name)
    return f"{head}3\r\n{bulk(kind)}{named}:{count}\r\n"


def message(payload: str, head: str = ">", channel: str = "hs") -> str:
    """A message of a channel."""
    return f"{head}3\r\n{bulk('message', channel, payload)}"


def test_hello_changes_the_protocol_from_its_reply_on() -> None:
    """Without a version it tells the present one; what fails changes nothing."""
    client = Site().client()

    assert client.ask("HELLO") == hello(2, 1)
    assert client.ask("GET", "k") == "$-1\r\n"
    assert client.ask("HELLO", "3") == hello(3, 1)
    assert client.ask("GET", "k") == "_\r\n"
    assert client.ask("HELLO") == hello(3, 1)
    for refused in (["4"], ["2", "SETNAME", "a\nb"], ["2", "AUTH", "default", "x"]):
        assert client.ask("HELLO", *refused).startswith("-")
        assert client.ask("GET", "k") == "_\r\n"
    assert client.ask("HELLO", "2") == hello(2, 1)
    assert client.ask("GET", "k") == "$-1\r\n"


def test_clients_greet_authenticate_and_name_themselves_at_once() -> None:
    site = Site(FULL)
    client = site.client()
    assert client.ask("HELLO", "3").startswith("-NOAUTH HELLO must be called")
    assert client.ask("HELLO", "3", "AUTH", "default", "wrong").startswith("-WRONGPASS")
    assert client.ask("GET", "k").startswith("-NOAUTH")
    assert client.ask("HELLO", "3", "AUTH", "default", "f", "SETNAME", "me") == hello(3, 1)
    assert ["me"] == [one.client.describe()["name"] for one in site.server.connections]
    assert hello(3, 2) == site.client().ask("HELLO", "3", "setname", "you", "auth", "full", "f")


def test_a_subscriber_gets_pushes_and_may_ask_anything() -> None:
    """Its connection may do the rest as well; what it publishes comes to itself too."""
    site = Site()
    client = site.client()
    client.ask("HELLO", "3")

    assert client.ask("SUBSCRIBE", "hs", "hs/x") == push("subscribe", "hs", 1) + push("subscribe", "hs/x", 2)
    assert client.ask("PING") == "+PONG\r\n"
    assert client.ask("PING", "x") == bulk("x")
    assert client.ask("SET", "k", "v") == "+OK\r\n"
    assert client.ask("GET", "k") == bulk("v")
    assert client.ask("PUBLISH", "hs", "REPLICATE") == message("REPLICATE") + ":1\r\n"
    assert client.ask("PUBLISH", "hs/x", "y") == message("y", channel="hs/x") + ":1\r\n"
    assert client.ask("UNSUBSCRIBE") == push("unsubscribe", "hs", 1) + push("unsubscribe", "hs/x", 0)
    assert client.ask("UNSUBSCRIBE") == push("unsubscribe", None, 0)


def test_each_subscriber_is_sent_its_form() -> None:
    """Also of positions that it is told first, and of what waited while it did not read."""
    site = Site()
    site.client().ask("PUBLISH", "hs", "POSITION events w 5 5")
    old, new = site.client(), site.client()
    new.ask("HELLO", "3")
    told = [client.ask("SUBSCRIBE", "hs") for client in (old, new)]
    assert told[0].endswith(message("POSITION events w 5 5", "*"))
    assert told[1].endswith(message("POSITION events w 5 5"))
    for client in (old, new):
        client.protocol.pauseProducing()  # type: ignore[attr-defined]  # it is a RespConnection
    for line in ("REPLICATE", "REMOTE_SERVER_UP x"):
        site.client().ask("PUBLISH", "hs", line)
    for client in (old, new):
        client.protocol.resumeProducing()  # type: ignore[attr-defined]  # as above

    for client, head in ((old, "*"), (new, ">")):
        assert client.heard() == message("REPLICATE", head) + message("REMOTE_SERVER_UP x", head)
    new.ask("HELLO", "2")
    site.client().ask("PUBLISH", "hs", "REPLICATE")
    assert new.heard() == message("REPLICATE", "*")
    assert new.ask("GET", "k").startswith("-ERR Can't execute 'get'")


def test_messages_are_encoded_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in RESP2, what is published costs each subscriber a write and no more."""
    encoded: list[bytes] = []
    encode = resp._pushes

    def counted(messages: bytes) -> bytes:
        encoded.append(messages)
        return encode(messages)

    monkeypatch.setattr(resp, "_pushes", counted)
    site = Site()
    readers: Sequence[Client] = [site.client() for _ in range(20)]
    for reader in readers:
        reader.ask("HELLO", "3")
        reader.ask("SUBSCRIBE", "hs")
    writer = site.client()
    encoded.clear()
    for number in range(3):
        writer.ask("PUBLISH", "hs", f"REMOTE_SERVER_UP {number}")
        site.clock.advance(1)

    lines = "".join(message(f"REMOTE_SERVER_UP {number}") for number in range(3))
    assert {reader.heard() for reader in readers} == {lines}
    assert len(encoded) == 3


def test_information_is_text() -> None:
    client = Site(READER).client()
    client.ask("HELLO", "3", "AUTH", "reader", "r")
    answer = client.ask("INFO")

    head, _, text = answer.partition("\r\n")
    assert head == f"={len(text) - 2}"
    assert text.startswith("txt:# synrepl\r\n")
