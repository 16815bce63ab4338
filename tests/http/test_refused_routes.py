"""Refused facts over HTTP: who sees which, and what may be done with them."""

import json
from typing import Any

from synrepl.base.access import Key, Keyring, Right
from synrepl.streams.catalog import RefusedFact
from tests.http.builders import SiteCase

ROW = r'["get_user_by_id",["\ud800"],1]'


def key(name: str, *rights: Right, streams: frozenset[str] | None = None) -> Key:
    return Key(name=name, secret=f"secret of {name}", rights=frozenset(rights), streams=streams)


class RefusedTests(SiteCase):
    """A primary that keeps a fact of `caches` and one of `push_rules`."""

    def setUp(self) -> None:
        super().setUp()
        self.keep("caches", ROW)
        self.keep("push_rules", "[]")

    def keep(self, stream: str, row: str) -> None:
        one = RefusedFact(
            stream=stream, writer="w", token=7, publisher="web", why="bad row \x1b[2J", rows=[row]
        )
        self.wait(self.refused.keep([one]))

    def listed(self, query: str = "", *headers: str) -> dict[str, Any]:
        answer = self.ask("GET", f"/v1/refused{query}", b"", *headers)
        self.assertEqual(200, answer.status, answer.body)
        found: dict[str, Any] = answer.json()
        return found

    def test_a_fact_is_shown_as_it_was_sent(self) -> None:
        """The text of a row within the text of JSON."""
        one = self.listed()["facts"][0]

        self.assertEqual(
            ["caches", "w", 7, "web"], [one[name] for name in ("stream", "writer", "token", "publisher")]
        )
        self.assertEqual(([ROW], 1), (one["rows"], one["serial"]))

    def test_pages(self) -> None:
        """By the serial of the last one, with the number of the rest."""
        first = self.listed("?limit=1")
        then = self.listed("?since=1")

        self.assertEqual((["caches"], 1), ([one["stream"] for one in first["facts"]], first["more"]))
        self.assertEqual((["push_rules"], 0), ([one["stream"] for one in then["facts"]], then["more"]))
        self.assertEqual(1, len(self.listed("?streams=push_rules")["facts"]))

    def test_a_key_sees_the_facts_of_its_streams_and_not_who_sent_them(self) -> None:
        """The publisher may be another key."""
        limited = key("limited", Right.READ, streams=frozenset({"caches"}))
        self.site = self.make_site(keys=Keyring(None, [limited]))

        found = self.listed("", "Authorization: Bearer secret of limited")

        self.assertEqual([("caches", None)], [(one["stream"], one["publisher"]) for one in found["facts"]])
        self.assertEqual(0, found["more"])

    def test_to_remove_or_replay_takes_administer_of_the_stream(self) -> None:
        """A key of another stream is refused, and nothing is removed."""
        keys = [key("reader", Right.READ), key("other", Right.ADMINISTER, streams=frozenset({"caches"}))]
        self.site = self.make_site(keys=Keyring(None, keys))
        body = b'{"facts":[{"stream":"push_rules","writer":"w","token":7}]}'
        for name, route in (
            ("reader", "remove"),
            ("reader", "replay"),
            ("other", "remove"),
            ("other", "replay"),
        ):
            answer = self.ask("POST", f"/v1/refused/{route}", body, f"Authorization: Bearer secret of {name}")
            self.assertEqual(403, answer.status, answer.body)

        self.assertEqual(2, len(self.refused))

    def test_what_is_removed_is_said(self) -> None:
        """A fact that is not there is left out."""
        names = [{"stream": "caches", "writer": "w", "token": token} for token in (7, 8, 7)]

        answer = self.ask("POST", "/v1/refused/remove", _body(names))

        self.assertEqual([names[0]], answer.json()["facts"])
        self.assertEqual(["push_rules"], [one["stream"] for one in self.listed()["facts"]])

    def test_a_replay_says_what_came_of_each(self) -> None:
        """Stored, not possible, or not there."""
        self.wait(self.refused.remove([("caches", "w", 7)]))
        self.keep("caches", '["get_user_by_id",["@a:hs"],1]')
        names = [
            {"stream": stream, "writer": "w", "token": token}
            for stream, token in (("caches", 7), ("push_rules", 7), ("caches", 9))
        ]

        answer = self.ask("POST", "/v1/refused/replay", _body(names))

        self.assertEqual(
            ["replayed", "refused", "absent"], [one["outcome"] for one in answer.json()["facts"]]
        )
        status = self.ask("GET", "/v1/status").json()
        self.assertEqual(1, status["refused"]["facts"])
        self.assertIn("1 fact could not be read", status["warnings"][0])

    def test_bad_bodies(self) -> None:
        """Too many names, or none."""
        for body in (
            b"{}",
            b'{"facts":[{"stream":"caches"}]}',
            _body([{"stream": "s", "writer": "w", "token": 1}] * 1_001),
        ):
            self.assertEqual(400, self.ask("POST", "/v1/refused/remove", body).status)


def _body(names: list[dict[str, Any]]) -> bytes:
    return json.dumps({"facts": names}).encode()
