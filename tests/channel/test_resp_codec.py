"""Requests of Redis clients, in whatever pieces they come."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.channel import resp_codec as resp
from synrepl.channel.resp_codec import (
    PUBLISHER,
    READER,
    STRANGER,
    PushEncoder,
    RequestLimits,
    RequestParser,
    message,
    read_messages,
    split_messages,
)
from synrepl.errors import RemoteProtocolError

GET = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"


def requests(*pieces: bytes, limits: RequestLimits = PUBLISHER) -> list[list[bytes]]:
    """What is read of these pieces."""
    reader = RequestParser((b"PING", b"GET"), limits)
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (words := reader.next()) is not None:
            found.append(words)
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (GET, [[b"GET", b"k"]]),
        (GET + GET, [[b"GET", b"k"], [b"GET", b"k"]]),
        (b"*1\r\n$4\r\nPING\r\n", [[b"PING"]]),
        (b"PING\r\n", [[b"PING"]]),
        (b"PING\nGET  k \r\n", [[b"PING"], [b"GET", b"k"]]),
        (b"\r\n\r\nPING\r\n", [[b"PING"]]),
        (b"*0\r\n*-1\r\nPING\r\n", [[b"PING"]]),
        (b"*2\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n", [[b"", b"\r\n\r\n"]]),
        (b"*2\r\n$3\r\nGET\r\n$1\r\n", []),
        (b'GET "a b"\r\n', [[b"GET", b"a b"]]),
        (b"GET 'a b' c\r\n", [[b"GET", b"a b", b"c"]]),
        (b"GET \"\" ''\r\n", [[b"GET", b"", b""]]),
        (rb'GET "\x41\n\r\t\b\a\"\\\q\xg1"' + b"\r\n", [[b"GET", b'A\n\r\t\b\a"\\qxg1']]),
        (rb"GET 'it\'s\n'" + b"\r\n", [[b"GET", rb"it's\n"]]),
        (b"GET a\"b c\"\td'e'\r\n", [[b"GET", b"ab c", b"de"]]),
        (rb"GET a\nb" + b"\r\n", [[b"GET", rb"a\nb"]]),
    ],
)
def test_requests_are_arrays_or_lines(data: bytes, expected: list[list[bytes]]) -> None:
    """The same in one piece and byte for byte."""
    assert expected == requests(data)
    assert expected == requests(*(data[at : at + 1] for at in range(len(data))))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"*400000000\r\n", "invalid multibulk length"),
        (b"*65\r\n", "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*-2\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n$99999999\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*2\r\n$4000000\r\n" + bytes(4_000_000) + b"\r\n$4000000\r\n", "invalid bulk length"),
        (b"*1\r\n$1\r\nabc\r\n", "invalid bulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n\x16\x03\r\n", "expected '$', got another character"),
        (b"A" * 1024, "too big inline request"),
        (b"PING\r\n", "no client of Redis sends a line that begins with 'PING'"),
        (b"\x1b]0;x\x07: x\r\n", r"no client of Redis sends a line that begins with '\x1b]0;x\x07:'"),
        (b"*1\r\n$" + b"1" * 1024, "too big bulk count string"),
        (b'GET "a\r\n', "unbalanced quotes in request"),
        (b"GET 'a\r\n", "unbalanced quotes in request"),
        (b'GET "a"b\r\n', "unbalanced quotes in request"),
        (b'GET "a\\"\r\n', "unbalanced quotes in request"),
        (b"GET 'a\\\\'\r\n", "unbalanced quotes in request"),
        (b'"GET" k\r\n', "no client of Redis sends a line that begins with '\"GET\"'"),
        (b'GET "k HTTP/1.1\r\n', "no client of Redis sends a line that begins with 'GET'"),
    ],
)
def test_rubbish_is_an_error_in_the_words_of_redis(data: bytes, why: str) -> None:
    """What came before it is read."""
    reader = RequestParser((b"GET",), limits=PUBLISHER)
    reader.feed(GET + data)

    assert [b"GET", b"k"] == reader.next()
    with pytest.raises(RemoteProtocolError, match=re.escape(f"Protocol error: {why}")):
        reader.next()


@pytest.mark.parametrize(
    ("data", "why"), [(b"*11\r\n", "multibulk"), (b"*1\r\n$16385\r\n", "bulk"), (b"*65\r\n", "multibulk")]
)
def test_a_stranger_may_send_little(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"unauthenticated {why} length"):
        requests(data, limits=STRANGER)


def test_only_a_publisher_may_send_long_requests() -> None:
    """A reader's unfinished word would be held for as long as it likes."""
    data = b"*2\r\n$3\r\nGET\r\n$65534\r\n"
    assert requests(data, limits=PUBLISHER) == []
    with pytest.raises(RemoteProtocolError, match="invalid bulk length"):
        requests(data, limits=READER)


def test_the_size_is_what_is_held() -> None:
    """Of the words that are complete as of the last one; nothing once the request was taken."""
    reader = RequestParser(limits=PUBLISHER)
    sizes = []
    for piece in (b"*2\r\n", b"$3\r\nGET\r\n", b"$5\r\n", b"ab", b"cde\r\n"):
        reader.feed(piece)
        found = reader.next()
        sizes.append(reader.size)

    assert found == [b"GET", b"abcde"]
    assert sizes == [0, 3, 3, 5, 0]
    reader.feed(GET + GET[:-3])
    assert reader.next() is not None
    reader.clear()
    assert reader.size == 0
    reader.feed(GET)
    assert reader.next() == [b"GET", b"k"]


def test_replies_are_those_of_redis() -> None:
    assert b"-ERR two lines\r\n" == resp.error("ERR two\r\nlines")
    assert b":3\r\n" == resp.integer(3)
    assert b"*2\r\n$2\r\nab\r\n*0\r\n" == resp.array([resp.bulk(b"ab"), resp.array([])])
    assert b"*3\r\n$7\r\nmessage\r\n$2\r\nhs\r\n$4\r\nPING\r\n" == resp.message(b"hs", b"PING")


def test_some_replies_look_different_in_resp3() -> None:
    """To a client that has asked for it."""
    one, two = resp.bulk(b"a"), resp.integer(2)
    old, new = resp.RESP2, resp.RESP3
    assert (b"$-1\r\n", b"_\r\n") == (old.null, new.null)
    assert old.push([one, two]) == old.set([one, two]) == old.map({b"a": two}) == b"*2\r\n$1\r\na\r\n:2\r\n"
    assert b">2\r\n$1\r\na\r\n:2\r\n" == new.push([one, two])
    assert b"~2\r\n$1\r\na\r\n:2\r\n" == new.set([one, two])
    assert b"%1\r\n$1\r\na\r\n:2\r\n" == new.map({b"a": two})
    assert (b"$2\r\nhi\r\n", b"=6\r\ntxt:hi\r\n") == (old.text(b"hi"), new.text(b"hi"))


HEAD = b"*3\r\n$7\r\nmessage\r\n"
PAYLOADS = st.one_of(
    st.binary(max_size=20), st.sampled_from([HEAD, message(b"hs", b"x"), b"\r\n" + HEAD, b"\r\n"])
)


@given(st.lists(st.tuples(st.sampled_from([b"hs", b"hs/x", b"", HEAD]), PAYLOADS), max_size=6))
def test_pushes_are_messages_with_another_first_byte(messages: list[tuple[bytes, bytes]]) -> None:
    """Whatever is in them, such as the start of another message."""
    encoded = [message(channel, payload) for channel, payload in messages]
    expected = b"".join(b">" + one[1:] for one in encoded)

    assert expected == PushEncoder().encode(b"".join(encoded))


def test_pushes_are_made_once() -> None:
    """For all subscribers of RESP3."""
    encoder, data = PushEncoder(), message(b"hs", b"x" * 100)
    assert encoder.encode(data) is encoder.encode(data)
    assert encoder.encode(message(b"hs", b"y")) == b">" + message(b"hs", b"y")[1:]


def test_messages_are_split_between_them() -> None:
    """Some have to fit into blocks."""
    messages = [message(b"hs", b"x" * size) for size in (1, 50, 3, 4, 60)]
    data = b"".join(messages)

    assert list(split_messages(data, len(data))) == [data]
    pieces = list(split_messages(data, 120))
    assert b"".join(pieces) == data
    assert len(pieces) > 2
    assert all(len(piece) <= 120 for piece in pieces)
    assert [payload for piece in pieces for _, payload in read_messages(piece)] == [
        b"x" * size for size in (1, 50, 3, 4, 60)
    ]
