"""Replies of what answers as Redis, in whatever pieces they come."""

from typing import Any

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.errors import RemoteProtocolError
from synrepl.wire.codec import MAX_MESSAGE
from synrepl.wire.reply_heads import MAX_DEPTH, MAX_ITEMS, MAX_LINE, MAX_REPLY, ReplyHeads

MESSAGE = b"*3\r\n$7\r\nmessage\r\n$2\r\nhs\r\n$4\r\n*9\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"*2147483647\r\n", "a reply has 2147483647 items"),
        (b"*%d\r\n" % (MAX_ITEMS + 1), "a reply has .* items"),
        (b"%%%d\r\n" % MAX_ITEMS, "a reply has .* items"),
        (b">2147483647\r\n", "a reply has .* items"),
        (b"~2147483647\r\n", "a reply has .* items"),
        (b"*1" + b"0" * 400 + b"\r\n", "a reply has .* items"),
        (b"*%d\r\n" % (MAX_ITEMS // 2) * 3, "a reply has .* items"),
        (
            b"*3\r\n" + (b"*%d\r\n" % (MAX_ITEMS // 2 - 2) + b"*0\r\n" * (MAX_ITEMS // 2 - 2)) * 3,
            "a reply has .* items",
        ),
        (b"|1\r\n+a\r\n+b\r\n", "an attribute came"),
        (b"*1\r\n|1000000000\r\n", "an attribute came"),
        (b"*1\r\n" * (MAX_DEPTH + 1), "arrays are more than"),
        (b"*2\r\n:1\r\n*99999999\r\n", "a reply has .* items"),
        (b"$2147483647\r\n", "a reply has more than"),
        (b"=2147483647\r\n", "a reply has more than"),
        (b"*2\r\n$%d\r\n%b\r\n$9\r\n" % (MAX_REPLY - 8, bytes(MAX_REPLY - 8)), "a reply has more than"),
        (b"+" + b"x" * MAX_LINE, "a line has more than"),
        (b"-" + b"x" * MAX_LINE, "a line has more than"),
        (b"$" + b"0" * MAX_LINE, "a line has more than"),
    ],
)
@pytest.mark.parametrize("before", [b"", MESSAGE, b":1\r\n", b"$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"])
def test_what_claims_too_much_is_refused_before_it_is_parsed(data: bytes, why: str, before: bytes) -> None:
    """Whole, and in two pieces."""
    with pytest.raises(RemoteProtocolError, match=why):
        ReplyHeads().check(before + data)
    heads = ReplyHeads()
    heads.check(before + data[:2])
    for piece in (data[2:], b":1\r\n"):
        with pytest.raises(RemoteProtocolError, match=why):
            heads.check(piece)


def test_the_largest_message_passes() -> None:
    """And the next one."""
    heads, payload = ReplyHeads(), bytes(MAX_MESSAGE)
    message = b"*3\r\n$7\r\nmessage\r\n$2\r\nhs\r\n$%d\r\n%b\r\n" % (len(payload), payload)
    for _ in range(2):
        for at in range(0, len(message), 1_000_000):
            heads.check(message[at : at + 1_000_000])


def encode(value: Any) -> bytes:
    """A reply."""
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case str():
            return b"+%b\r\n" % value.encode()
    return b"*%d\r\n%b" % (len(value), b"".join(map(encode, value)))


LEAVES = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.binary(max_size=30)
    | st.sampled_from([b"*99999999\r\n", b"\r\n$99999999999\r\n", b"message"])
    | st.text("abc*$", max_size=5)
)
REPLIES = st.recursive(LEAVES, lambda children: st.lists(children, max_size=4), max_leaves=8)


def depth(value: Any) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@settings(deadline=None)
@given(st.lists(REPLIES.filter(lambda value: depth(value) <= MAX_DEPTH), max_size=6), st.data())
def test_what_a_redis_says_passes(replies: list[Any], draw: st.DataObject) -> None:
    """In any pieces: the check follows the parser, and takes nothing within a value for a head."""
    data = b"".join(map(encode, replies)) + MESSAGE
    heads, reader, found = ReplyHeads(), hiredis.Reader(), []
    while data:
        size = draw.draw(st.integers(1, len(data)))
        heads.check(data[:size])
        reader.feed(data[:size])
        data = data[size:]
        while (reply := reader.gets()) is not False:
            found.append(reply)

    assert len(found) == len(replies) + 1
    with pytest.raises(RemoteProtocolError):
        heads.check(b"*99999999\r\n")


@pytest.mark.parametrize("number", range(7))
def test_a_row_that_looks_like_a_head_passes(number: int) -> None:
    """A user chooses the state key of an event, and where a read ends is known."""
    heads = ReplyHeads()
    row = b'RDATA events w 5 ["ev",["$e","!r","t","' + b"*" * number + b"*99999" * 40 + b'",null]]'
    for payload in (row, row, b"*99999", b"\r\n*99999\r\n*99999\r\n"):
        heads.check(b"*3\r\n$7\r\nmessage\r\n$2\r\nhs\r\n$%d\r\n%b\r\n" % (len(payload), payload))


@pytest.mark.parametrize(
    "data", [b"\x15\x03\x01\x00\x02\x02F", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$x\r\n", b"*\r\n"]
)
def test_what_is_no_reply_is_left_to_the_parser(data: bytes) -> None:
    """Its error says what is wrong."""
    ReplyHeads().check(data)
