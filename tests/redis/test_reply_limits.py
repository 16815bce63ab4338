"""What answers as Redis is bounded before the parser gets it: 13 bytes ended the daemon."""

import pytest

from synrepl.transports.redis.reply_limits import MAX_PARTS, MAX_REPLY, ReplyLimits

MESSAGE = b"*3\r\n$7\r\nmessage\r\n$2\r\nhs\r\n$9\r\nRDATA *99\r\n"


@pytest.mark.parametrize(
    "head", [b"*2147483647\r\n", b"*0002147483647\r\n", b"%99999\r\n", b"~10000\r\n", b">10000\r\n"]
)
@pytest.mark.parametrize("before", [b"", b"+OK\r\n", MESSAGE, b"*3\r\n"])
@pytest.mark.parametrize("cut", range(0, 20, 3))
def test_a_reply_of_too_many_parts_is_refused(head: bytes, before: bytes, cut: int) -> None:
    """The parser would allocate memory for all of them at once."""
    limits, data = ReplyLimits(), before + head
    cut = min(cut, len(data))

    refusals = [limits.refusal(data[:cut]), limits.refusal(data[cut:])]

    assert any(f"more than {MAX_PARTS:,} parts" in one for one in refusals)


def test_a_reply_without_an_end_is_refused() -> None:
    """It took 4 GB in eight seconds."""
    limits, piece = ReplyLimits(), b"x" * 1024 * 1024

    refusals = [limits.refusal(piece) for _ in range(MAX_REPLY // len(piece) + 1)]

    assert ["a reply has more than 128 MiB"] == [one for one in refusals if one]


def test_replies_that_end_are_not_counted_together() -> None:
    """A connection lasts for months."""
    limits, piece = ReplyLimits(), b"x" * 1024 * 1024
    for _ in range(300):
        assert "" == limits.refusal(piece)
        limits.completed()


@pytest.mark.parametrize(
    "text", [MESSAGE * 10, b'$9\r\n["*99999"]\r\n', b"*3\r\n", b"*9999\r\n", b":123456789\r\n", b"$99999\r\n"]
)
def test_what_redis_says_passes(text: bytes) -> None:
    """Numbers in a message, long strings and integers are none of its business."""
    assert "" == ReplyLimits().refusal(text)
