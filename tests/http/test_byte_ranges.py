"""Which bytes are asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.transports.http.headers import Unsatisfiable, matches, read_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 3)),
        ("bytes=2-", (2, 8)),
        ("Bytes = 2 - 400", (2, 8)),
        ("bytes=-3", (7, 3)),
        ("bytes=-300", (0, 10)),
        ("bytes=9-", (9, 1)),
        ("bytes=", None),
        ("bytes=-", None),
        ("bytes=4-2", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("bytes=-1-5", None),
        ("bytes=٣-٤", None),
    ],
)
def test_a_range_of_ten_bytes(header: str | None, expected: tuple[int, int] | None) -> None:
    """What is no single range of bytes counts as nothing asked."""
    assert read_range(header, 10) == expected


@pytest.mark.parametrize(
    ("header", "size"),
    [("bytes=10-", 10), ("bytes=99-100", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)],
)
def test_what_is_not_there_cannot_be_had(header: str, size: int) -> None:
    """And that is told, or a download would be gone on with for ever."""
    with pytest.raises(Unsatisfiable):
        read_range(header, size)


@given(st.integers(0, 50), st.none() | st.integers(0, 60), st.none() | st.integers(0, 60))
def test_a_range_is_what_a_slice_would_be(size: int, first: int | None, last: int | None) -> None:
    """Python agrees."""
    data = bytes(range(size))
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    if first is None:
        expected = data if last is None else data[-last:] if last else b""
    else:
        expected = data[first:] if last is None else data[first : last + 1] if first <= last else data
    try:
        found = read_range(header, size)
    except Unsatisfiable:
        assert expected == b""
    else:
        start, count = found or (0, size)
        assert data[start : start + count] == expected


@given(st.text(max_size=30), st.integers(0, 2**64))
def test_no_header_breaks_it(header: str, size: int) -> None:
    """Whatever somebody sends."""
    try:
        found = read_range(header, size)
    except Unsatisfiable:
        return
    assert found is None or 0 <= found[0] < found[0] + found[1] <= size


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, False),
        ("*", True),
        ('"t"', True),
        ('W/"t"', True),
        ('"a", "t"', True),
        ('"a"', False),
        ("t", False),
    ],
)
def test_entity_tags_are_compared_as_in_if_none_match(header: str | None, expected: bool) -> None:
    """As in If-None-Match."""
    assert matches(header, "t") == expected
