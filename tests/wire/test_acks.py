"""Whose acknowledgements an append waits for, in text."""

import pytest

from synrepl.wire.acks import Acks


@pytest.mark.parametrize(
    ("text", "acks"),
    [
        ("0", Acks()),
        ("2", Acks(2)),
        ("100", Acks(100)),
        ("paris", Acks(1, ("paris",))),
        ("paris,oslo,paris", Acks(2, ("oslo", "paris"))),
    ],
)
def test_a_number_or_names(text: str, acks: Acks) -> None:
    """A name twice counts once."""
    assert acks == Acks.parse(text) == Acks.parse(str(acks))


@pytest.mark.parametrize("text", ["", "101", "9" * 400, "٣", "1,paris", "a b", "paris,", "x" * 256, "a\n"])
def test_anything_else_is_refused(text: str) -> None:
    """A replica called 1 could not be told from a number."""
    with pytest.raises(ValueError, match="must "):
        Acks.parse(text)


def test_names_have_a_limit() -> None:
    """Each is looked up."""
    with pytest.raises(ValueError, match="at most 100"):
        Acks.parse(",".join(f"n{number}" for number in range(101)))
