"""Text of peers must not move the cursor, clear the screen or start a new line."""

import pytest

from synrepl.wire.text import printable, printable_values

CASES = [
    ("worker1", "worker1"),
    ("Zürich 日本", "Zürich 日本"),
    ("\x1b]0;pwned\x07", "\\x1b]0;pwned\\x07"),
    ("a\nFORGED", "a\\nFORGED"),
    ("a\r\tb", "a\\r\\tb"),
    ("\x9b2J", "\\x9b2J"),
    ("abc\u202ecba", "abc\\u202ecba"),
    ("\u2028", "\\u2028"),
    ("\ud800", "\\ud800"),
    ("\x00", "\\x00"),
]


@pytest.mark.parametrize(("text", "shown"), CASES)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    """Names, addresses and messages of peers are shown in logs and `synrepl status`."""
    assert shown == printable(text)


def test_a_long_text_is_cut() -> None:
    """A name of 60 kB must not fill a screen."""
    assert "x" * 200 + "..." == printable("x" * 60_000)
    assert "xxx..." == printable("xxxx", limit=3)


def test_every_text_of_a_response_is_made_safe() -> None:
    """A status has names, addresses and messages of peers, at any depth."""
    found = {"replicas": [{"name": "a\x1b[2J", "serial": 3}], "\x07": None, "long": "x" * 500}

    assert {
        "replicas": [{"name": "a\\x1b[2J", "serial": 3}],
        "\\x07": None,
        "long": "x" * 500,
    } == printable_values(found)
