"""Records: every byte of a direction is as its writer wrote it, or none of the record is delivered."""

import hmac
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.errors import RemoteProtocolError
from synrepl.wire.blocks import BlockBuffer, Payload, encode_block
from synrepl.wire.codec import LineBuffer
from synrepl.wire.records import MAX_PAYLOAD, TAG_BYTES, HandshakeBuffer, RecordBuffer, RecordWriter

KEY = b"k" * 32
WRITES = (b"ACK 1 2 3\n", b"x" * 100, b"PING 1\nPING 2\n")


def records(*writes: bytes, key: bytes = KEY) -> list[bytes]:
    """The records of these writes, in order."""
    writer = RecordWriter(key)
    return [writer.write(data) for data in writes]


def read(data: bytes, *, key: bytes = KEY) -> list[bytes]:
    return list(RecordBuffer(key).receive(data))


def test_a_record_is_a_length_a_payload_and_a_tag() -> None:
    """Byte by byte, for who writes another buffer."""
    first, second = records(b"abc", b"d")

    tag = hmac.digest(KEY, b"\0" * 8 + b"\0\0\0\3" + b"abc", "sha256")[:16]
    assert b"\0\0\0\3abc" + tag == first
    tag = hmac.digest(KEY, b"\0" * 7 + b"\1" + b"\0\0\0\1" + b"d", "sha256")[:16]
    assert b"\0\0\0\1d" + tag == second


@given(st.lists(st.integers(0, sum(map(len, WRITES)) + 3 * (4 + TAG_BYTES)), max_size=8))
def test_any_chunks_give_the_same(places: list[int]) -> None:
    """TCP may split the bytes anywhere."""
    data = b"".join(records(*WRITES))
    cuts = [0, *sorted(places), len(data)]
    buffer = RecordBuffer(KEY)

    assert [*WRITES] == [got for first, last in pairwise(cuts) for got in buffer.receive(data[first:last])]


def test_byte_by_byte_is_the_same() -> None:
    """Chunks may end anywhere, within the length as well."""
    buffer = RecordBuffer(KEY)
    data = b"".join(records(*WRITES))

    assert [*WRITES] == [got for byte in data for got in buffer.receive(bytes([byte]))]


@pytest.mark.parametrize("size", [MAX_PAYLOAD, MAX_PAYLOAD + 1, 3 * MAX_PAYLOAD])
def test_a_large_write_is_several_records(size: int) -> None:
    """A buffer buffers one record: its size is bounded, that of a write is not."""
    got = read(RecordWriter(KEY).write(b"y" * size))

    assert -(-size // MAX_PAYLOAD) == len(got)
    assert b"y" * size == b"".join(got)


def test_an_empty_write_makes_no_record() -> None:
    """An empty write must not use up a number."""
    writer = RecordWriter(KEY)

    assert b"" == writer.write(b"")
    assert [b"a"] == read(writer.write(b"a"))


def altered() -> dict[str, bytes]:
    """What may be done to three records on their way; the first one is left as it was."""
    first, second, third = records(*WRITES)
    return {
        "repeated": first + first,
        "left out": first + third,
        "moved": first + third + second,
        "of another key": first + records(*WRITES, key=b"l" * 32)[1],
        "of another connection's start": first + records(WRITES[1])[0],
        "payload": first + second.replace(b"x", b"y", 1),
        "tag": first + second[:-1] + bytes([second[-1] ^ 1]),
        "longer": first + b"\0\0\0\x65" + second[4:] + third,
        "shorter": first + b"\0\0\0\x63" + second[4:] + third,
        "added": first + b"\0\0\0\4PING" + b"\0" * TAG_BYTES,
    }


@pytest.mark.parametrize("how", altered())
def test_nothing_of_an_altered_record_is_delivered(how: str) -> None:
    """Whole or byte by byte."""
    data = altered()[how]
    for size in (1, 50, len(data)):
        buffer = RecordBuffer(KEY)
        got: list[bytes] = []
        chunks = (data[at : at + size] for at in range(0, len(data), size))
        with pytest.raises(RemoteProtocolError, match="was altered or is out of step: the tag of a record"):
            got.extend(payload for chunk in chunks for payload in buffer.receive(chunk))
        assert [WRITES[0]] == got


def test_records_before_a_bad_one_are_delivered() -> None:
    """The caller gets it, also if the next record of the chunk is wrong."""
    first, second, _ = records(*WRITES)
    feeding = RecordBuffer(KEY).receive(first + second[:-1] + b"?")

    assert WRITES[0] == next(feeding)
    with pytest.raises(RemoteProtocolError):
        next(feeding)


def test_an_unfinished_record_gives_nothing() -> None:
    """A truncated connection ends with whole records."""
    first, second, _ = records(*WRITES)

    assert [WRITES[0]] == read(first + second[:-1])


@pytest.mark.parametrize("data", [b"JOIN {}\n", b"\0\0\0\0", b"\0\1\0\1", b"ERROR x\n", b"\xff" * 4])
def test_a_peer_that_sends_no_records_is_told_so(data: bytes) -> None:
    """By the impossible length, and without waiting for so many bytes."""
    with pytest.raises(RemoteProtocolError, match="must send records of 1 to 65536 bytes after the hands"):
        read(data)


BEFORE = b"SERVER hs\nPING 1\n"
LAST = b'WELCOME {"proof":""}\n'
BLOCK = encode_block("facts", 1, b"WELCOME \n")
AFTER = b"PING 2\n" + BLOCK + b"PING 3\n"
EVERYTHING = [*BEFORE.split(b"\n")[:2], LAST[:-1], b"PING 2", Payload("facts", 1, b"WELCOME \n"), b"PING 3"]


def read_handshake(chunks: list[bytes], *, key: bytes | None) -> list[bytes | Payload]:
    """Read as the owner of a connection does: the key is known once the last line was handled."""
    buffer = HandshakeBuffer(b"WELCOME ", BlockBuffer)
    got: list[bytes | Payload] = []
    for chunk in chunks:
        for run in buffer.runs(chunk):
            got += [run] if isinstance(run, Payload) else run
            if key is not None and LAST[:-1] == got[-1]:
                buffer.read_records(key)
    return got


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "records"])
def test_the_bytes_after_the_handshake_are_read_otherwise(key: bytes | None) -> None:
    """In one chunk with it, byte by byte, and cut anywhere once."""
    after = AFTER if key is None else b"".join(records(AFTER[:20], AFTER[20:], key=key))
    data = BEFORE + LAST + after

    assert EVERYTHING == read_handshake([data], key=key)
    assert EVERYTHING == read_handshake([bytes([byte]) for byte in data], key=key)
    for cut in range(len(data)):
        assert EVERYTHING == read_handshake([data[:cut], data[cut:]], key=key)


def test_lines_after_the_handshake_may_be_lines_alone() -> None:
    """As on the upstream's side, whose replica sends no blocks; no line of a follower ends a handshake."""
    buffer = HandshakeBuffer(b"AUTH", LineBuffer)
    lines = b"NAME a\nREPLICATE\nPING AUTH\nAUTH {}\nJOIN {}\nAUTH {}\nPI"

    runs = list(buffer.runs(lines))

    assert [[b"NAME a", b"REPLICATE", b"PING AUTH"], [b"AUTH {}"], [b"JOIN {}", b"AUTH {}"]] == runs
    assert [[b"PING"]] == list(buffer.runs(b"NG\n"))
