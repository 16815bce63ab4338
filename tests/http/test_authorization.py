"""Who may ask: whoever shows a secret that is known here, once."""

import pytest
from twisted.web.http_headers import Headers

from synrepl.transports.http.authorization import Guard

KNOWN = ("shared", ["of paris", "of oslo"])

CASES = [
    ([], False),
    (["Bearer shared"], True),
    (["Bearer of paris"], True),
    (["Bearer of oslo"], True),
    (["Bearer of lisbon"], False),
    (["Bearer "], False),
    (["shared"], False),
    (["Bearer shared", "Bearer shared"], False),
]


def headers(shown: list[str]) -> Headers:
    """What a client sends."""
    return Headers({b"authorization": [one.encode() for one in shown]} if shown else {})


@pytest.mark.parametrize(("shown", "may"), CASES)
def test_a_known_secret_is_wanted_once(shown: list[str], may: bool) -> None:
    """The shared one, or that of any replica."""
    assert may is Guard(*KNOWN).allows(headers(shown))


@pytest.mark.parametrize("shown", [shown for shown, _ in CASES])
def test_without_any_secret_everybody_may_ask(shown: list[str]) -> None:
    """Beyond loopback the settings do not allow that."""
    assert Guard(None).allows(headers(shown))


def test_replicas_alone_can_have_secrets() -> None:
    """Then there is no shared one."""
    guard = Guard(None, ["of paris"])

    assert guard.allows(headers(["Bearer of paris"]))
    assert not guard.allows(headers([]))
