"""A replica's connection to its upstream, as the channel of its daemon uses it."""

from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from synrepl.base.metrics import Metrics
from synrepl.replicas.native_client import NativeConversation
from synrepl.replicas.wire.native import Publish, PublishTo
from synrepl.replicas.wire.native_codec import native_codec
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import CLIENT, SERVER
from synrepl.wire.session import Session

LONG = b"x" * 2**26
"""Longer than any line of the native protocol."""


@pytest.fixture
def connection() -> Any:
    """A connection that keeps what is written."""
    session = Session(CLIENT, NATIVE, name="a", seconds=lambda: 0.0)
    session.speak(native_codec(ours=CLIENT, theirs=SERVER))
    return Mock(session=session)


@pytest.fixture
def conversation(connection: Any) -> NativeConversation:
    return NativeConversation(connection, Metrics(CollectorRegistry()))


@pytest.mark.parametrize(
    ("channel", "lines", "expected"),
    [
        ("", [b"REPLICATE "], b"PUBLISH 0a.1 REPLICATE \n"),
        ("", [b"RDATA a w batch [1]", b"RDATA a w 2 [2]"], None),
        ("USER_IP", [b"USER_IP x"], b"PUBLISH_TO 0a.1 USER_IP USER_IP x\n"),
    ],
)
def test_lines_are_encoded_with_their_publisher(
    conversation: NativeConversation, channel: str, lines: list[bytes], expected: bytes | None
) -> None:
    """The upstream holds to the order of each publisher. The lines of a batch go together."""
    encoded = conversation.encode_published("0a.1", channel, lines)

    assert encoded == (expected or b"".join(b"PUBLISH 0a.1 %b\n" % line for line in lines))


def test_a_line_that_is_too_long_is_not_encoded(conversation: NativeConversation) -> None:
    """It would end the connection, over which the log goes too."""
    assert conversation.encode_published("0a.1", "", [b"short", LONG]) is None
    assert conversation.encode_lost("0a.1") == b"PUBLISHER_LOST 0a.1\n"


def test_it_joins_the_channel(connection: Any, conversation: NativeConversation) -> None:
    conversation.join_channel()

    connection.write.assert_called_once_with(b"CHANNEL\n")


def test_lines_are_not_shown() -> None:
    """Those of sub-channels may carry access tokens, and commands are logged."""
    shown = [repr(Publish(publisher="a", line="secret")), repr(PublishTo("a", "USER_IP", "secret"))]

    assert not [one for one in shown if "secret" in one]
