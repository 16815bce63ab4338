"""Large bodies: their facts are cut out of the text before it is decoded."""

import json
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.large_body import LARGE_BYTES, split_facts
from tests.http.builders import SiteCase, append_body, receipt

STRANGE = [[["]", '"', "\\", "[{", '\\"]', "\u00e9", {"facts": [[], {}]}]], [[{"a": [1, [2]]}], []], [5]]


def split(body: bytes) -> tuple[Any, list[list[bytes]]]:
    """The rest as JSON, and the texts of the facts."""
    rest, found = split_facts(body)
    return json.loads(rest), [[bytes(fact) for fact in facts] for facts in found]


@pytest.mark.parametrize("indent", [None, 1])
def test_the_facts_are_those_of_the_decoder(indent: int | None) -> None:
    """Whatever is in them, and however it is spaced."""
    body = {"writer": "[", "facts": STRANGE, "idempotency_key": '"facts":['}

    rest, (facts,) = split(json.dumps(body, indent=indent).encode())

    assert STRANGE == [json.loads(fact) for fact in facts]
    assert {**body, "facts": []} == rest


def test_each_append_of_a_batch_has_its_own_facts() -> None:
    """In the order of the appends; there may be none."""
    appends: list[dict[str, Any]] = [
        {"stream": "a", "facts": [[[1]]]},
        {"facts": [], "stream": "b"},
        {"facts": [[[2]], [[3]]]},
    ]

    rest, facts = split(json.dumps({"appends": appends}).encode())

    assert [[b"[[1]]"], [], [b"[[2]]", b"[[3]]"]] == facts
    assert {"appends": [{**one, "facts": []} for one in appends]} == rest


@pytest.mark.parametrize(
    "facts", [b"[[1]] [[2]]", b"[[1]],,[[2]]", b",[[1]]", b"[[1]],", b"5", b"[[1]],null,[[2]]", b'"x",[[1]]']
)
def test_what_is_between_the_facts_must_be_a_comma(facts: bytes) -> None:
    """Nothing is left out in silence."""
    with pytest.raises(ApiError, match="not JSON"):
        split_facts(b'{"facts":[' + facts + b"]}")


@pytest.mark.parametrize("body", [b"", b"]]", b'{"facts":[[1', b'{"facts":["', b"[[[["])
def test_a_body_that_breaks_off_is_left_to_the_decoder(body: bytes) -> None:
    """It says what is wrong."""
    rest, _ = split_facts(body)

    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(rest)


def test_facts_and_the_rest_are_bounded() -> None:
    """22 million empty facts stopped a daemon for 13 seconds; a key with escapes hides none."""
    for body in (
        b'{"facts":[' + b"[]," * 20_000 + b"[]]}",
        b'{"f\\u0061cts":[' + b"[]," * 400_000 + b"[]]}",
    ):
        with pytest.raises(ApiError) as refused:
            split_facts(body)
        assert refused.value.code == "too_large"


@pytest.mark.parametrize("window", [2, 3, 7, 64 * 1024])
@pytest.mark.parametrize(
    "text",
    ['"a":0,', "\\n", "x", '\\"', '"\\\\",', "\u00e9"],
    ids=["fields", "n", "x", "quotes", "ends", "e"],
)
def test_no_match_looks_at_more_than_a_window(window: int, text: str) -> None:
    """One match of 48 MB without brackets held the interpreter for 4 seconds; all else is as before."""
    body = {"writer": text * 50, "facts": [[[text * 50, "]"]], [[text]]], "[": text * 9}

    with patch("synrepl.transports.http.large_body.WINDOW", window):
        rest, (facts,) = split(json.dumps(body, ensure_ascii=False).encode())

    assert body["facts"] == [json.loads(fact) for fact in facts]
    assert {**body, "facts": []} == rest


class LargePostTests(SiteCase):
    """Large bodies are answered as small ones."""

    padding = b" " * LARGE_BYTES

    def test_a_large_append_is_stored(self) -> None:
        """With all that was said beside its facts."""
        body = append_body([[receipt()], [receipt("@bob:hs.example")]], writer="w1") + self.padding

        answer = self.ask("POST", "/v1/streams/receipts/facts", body)

        self.assertEqual((200, [1, 2]), (answer.status, answer.json()["tokens"]))
        self.assertEqual({"w1": 2}, dict(self.log.positions("receipts")))

    def test_a_large_batch_is_stored(self) -> None:
        """Each append has its facts."""
        appends = [
            {"stream": "receipts", "writer": writer, "facts": [[receipt()]] * count}
            for writer, count in (("w1", 1), ("w2", 2))
        ]

        answer = self.ask("POST", "/v1/facts", json.dumps({"appends": appends}).encode() + self.padding)

        self.assertEqual(200, answer.status)
        self.assertEqual({"w1": 1, "w2": 3}, dict(self.log.positions("receipts")))

    def test_a_large_body_that_is_no_append_is_refused_as_a_small_one(self) -> None:
        """With the same error."""
        for body in (b"{}", b'{"facts":5}', b"[", b'{"facts":[[[]]],"x":1}'):
            answers = [
                self.ask("POST", "/v1/streams/receipts/facts", body + padding)
                for padding in (b"", self.padding)
            ]
            self.assertEqual([400, 400], [answer.status for answer in answers], body)

    def test_a_large_fact_is_validated_as_a_small_one(self) -> None:
        """In a thread."""
        with patch("synrepl.transports.http.append_routes.LARGE_BYTES", 10):
            stored, refused = self.post("receipts", [receipt()]), self.post("receipts", [receipt()], [[1]])

        self.assertEqual((200, 400), (stored.status, refused.status))
        self.assertIn("fact 1, row 0", refused.json()["message"])

    def test_a_request_with_too_many_facts_is_refused(self) -> None:
        """They would be published in one turn."""
        answers = [self.post("receipts", *[[receipt()]] * count) for count in (3, 4)]
        with patch("synrepl.transports.http.append_routes.MAX_FACTS", 3):
            answers = [self.post("receipts", *[[receipt()]] * count) for count in (3, 4)]

        self.assertEqual([200, 413], [answer.status for answer in answers])
