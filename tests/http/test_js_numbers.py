"""Rows for JavaScript, over HTTP: `numbers=text`."""

import json
from typing import Any
from zlib import crc32

from tests.http.builders import receipt
from tests.http.test_changelog_feed import FollowCase

LARGE = 2**53 + 1
TEXT = str(LARGE)


def with_number(number: int) -> list[Any]:
    """A row of receipts with a number."""
    return [*receipt()[:-1], {"ts": number, "note": TEXT, "small": 7}]


class NumberTests(FollowCase):
    """Rows with a number that JavaScript would change."""

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(200, self.post("receipts", [with_number(LARGE)], [with_number(-LARGE)]).status)

    def test_rows_have_it_as_text(self) -> None:
        """And as a number unless text is asked for; small ones stay numbers."""
        path = "/v1/streams/receipts/rows"
        (_, plain), _ = self.get(path).json()["updates"]
        (token, first), (_, second) = self.get(f"{path}?numbers=text").json()["updates"]

        self.assertEqual({"ts": LARGE, "note": TEXT, "small": 7}, plain[-1])
        self.assertEqual((1, {"ts": TEXT, "note": TEXT, "small": 7}), (token, first[-1]))
        self.assertEqual(f"-{TEXT}", second[-1]["ts"])

    def test_the_changelog_has_it_as_text(self) -> None:
        """With and without checksums, from the database and as it is committed; serials are numbers."""
        for query in ("", "&checksum=true", "&streams=receipts"):
            with self.subTest(query=query):
                plain = self.get(f"/v1/changelog?since=0{query}").lines()
                asked = self.get(f"/v1/changelog?since=0&numbers=text{query}").lines()
                self.assertEqual([LARGE, -LARGE], [one["rows"][0][-1]["ts"] for one in plain])
                self.assertEqual([TEXT, f"-{TEXT}"], [one["rows"][0][-1]["ts"] for one in asked])
                for ours, theirs in zip(plain, asked, strict=True):
                    self.assertEqual(
                        {name: value for name, value in ours.items() if name != "rows"},
                        {name: value for name, value in theirs.items() if name != "rows"},
                    )

    def test_a_followed_changelog_has_it_as_text(self) -> None:
        """Ephemeral lines too, whose check is of what was sent."""
        talk = self.talk()
        talk.say(self.request("GET", "/v1/changelog?since=2&follow=true&ephemeral=true&numbers=text"))
        self.post("receipts", [with_number(LARGE)])
        self.post("presence", [["@ada:hs.example", "online", LARGE, 1, 1, None, True]])
        self.clock.advance(0)

        texts = talk.answer().body.splitlines()
        lines = [json.loads(text) for text in texts]
        (kept,) = [line for line in lines if "serial" in line]
        ((at, ephemeral),) = [
            (at, line["ephemeral"]) for at, line in enumerate(lines) if line.get("ephemeral")
        ]
        self.assertEqual(TEXT, kept["rows"][0][-1]["ts"])
        self.assertEqual(TEXT, ephemeral["rows"][0][2])
        content = texts[at].removeprefix(b'{"ephemeral":').rpartition(b',"check"')[0]
        self.assertEqual(b"%08x" % crc32(content, crc32(b"ephemeral")), lines[at]["check"].encode())

    def test_another_word_is_refused(self) -> None:
        """It may be a misspelling."""
        self.assertEqual(400, self.get("/v1/changelog?numbers=string").status)
