"""Facts of several streams in one request, told in it or brought before."""

import json
from typing import Any

from synrepl.transports.http.append_routes import MAX_WRITERS
from tests.http.builders import SiteCase, receipt

APPENDS = "/v1/facts"


def append(stream: str, *rows: Any, **more: str) -> dict[str, Any]:
    """One append, with a fact of each row."""
    return {"stream": stream, "facts": [[row] for row in rows], **more}


class AppendsCase(SiteCase):
    """Whoever brings much says it at one word."""

    def told(self, said: Any, status: int = 200) -> Any:
        """The answer to this body."""
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        answer = self.ask("POST", APPENDS, body)
        self.assertEqual(status, answer.status, answer.body)
        return answer.json()

    def held(self) -> list[tuple[int, str, str, int]]:
        """What the log has."""
        return [(fact.serial, fact.stream, fact.writer, fact.token) for fact in self.engine.facts]


class AppendsTests(AppendsCase):
    """Whoever brings much says it at one word."""

    def test_a_body_that_is_too_long_is_refused_before_it_is_sent(self) -> None:
        """Its length is said first: nobody need send a gigabyte to hear that."""
        talk = self.talk()
        head = self.request("POST", "/v1/streams/receipts/facts", b"", "Expect: 100-continue")
        talk.say(head.replace(b"Content-Length: 0", b"Content-Length: 99999999999"))

        self.assertEqual((413, "too_large"), (talk.answer().status, talk.answer().json()["error"]))

    def test_appends_keep_their_order_across_streams(self) -> None:
        """What is played back is in the order in which it once came."""
        said = self.told(
            {
                "appends": [
                    append("receipts", receipt("@a:b"), writer="w1"),
                    append("push_rules", ["@a:b"], ["@c:d"]),
                    append("receipts", receipt("@c:d"), writer="w2"),
                ]
            }
        )

        self.assertEqual(
            {
                "epoch": 1,
                "appends": [
                    {"epoch": 1, "first_serial": 1, "tokens": [1]},
                    {"epoch": 1, "first_serial": 2, "tokens": [1, 2]},
                    {"epoch": 1, "first_serial": 4, "tokens": [2]},
                ],
            },
            said,
        )
        self.assertEqual(
            [
                (1, "receipts", "w1", 1),
                (2, "push_rules", "master", 1),
                (3, "push_rules", "master", 2),
                (4, "receipts", "w2", 2),
            ],
            self.held(),
        )

    def test_an_atomic_batch_is_one_append(self) -> None:
        """One receipt; a retry gets the same answer; a bad row anywhere stores nothing."""
        said = {
            "appends": [append("push_rules", ["@a:b"]), append("receipts", receipt("@a:b"), writer="w1")],
            "atomic": True,
            "idempotency_key": "k",
        }
        first, again = self.told(said), self.told(said)

        self.assertEqual(
            {
                "epoch": 1,
                "appends": [
                    {"epoch": 1, "first_serial": 2, "tokens": [1]},
                    {"epoch": 1, "first_serial": 3, "tokens": [1]},
                ],
            },
            first,
        )
        self.assertEqual(first, again)
        opening = (1, "atomic_appends", "master", 1)
        self.assertEqual([opening, (2, "push_rules", "master", 1), (3, "receipts", "w1", 1)], self.held())
        self.assertEqual(
            [[1, 1, 1]], [receipt.appended.tokens for receipt in self.engine.receipts_by_key.values()]
        )
        bad = said | {"appends": [append("push_rules", ["@c:d"]), append("receipts", ["?"])]}
        self.assertEqual("bad_row", self.told(bad, 400)["error"])
        other = said | {"appends": [append("push_rules", ["@c:d"])]}
        self.assertEqual("idempotency_key_reused", self.told(other, 409)["error"])
        self.assertEqual(3, len(self.held()))

    def test_an_atomic_batch_is_bounded_and_of_kept_streams(self) -> None:
        typing = {"stream": "typing", "facts": [[["!r:hs", []]]]}
        cases = [
            ([append("push_rules", *[["@a:b"]] * 1_001)], 413, "may have 1000 facts"),
            ([append("push_rules")] * 1_001, 413, "may have 1000 facts"),
            ([append("push_rules", *[["@a:" + "b" * 3_000_000]] * 3)], 413, "may have 8388608 bytes"),
            ([append("push_rules", ["@a:b"]), typing], 400, "typing is ephemeral"),
            ([append("nonsense", ["x"])], 404, "nonsense"),
        ]
        for appends, status, why in cases:
            answer = self.ask("POST", APPENDS, json.dumps({"appends": appends, "atomic": True}).encode())
            self.assertIn(why, answer.json()["message"])
            self.assertEqual(status, answer.status, answer.body)
        staged = self.told({"staged": "0" * 64, "atomic": True}, 400)
        self.assertIn("it cannot be staged", staged["message"])
        self.assertEqual([], self.held())

    def test_a_key_that_stood_for_something_else_is_refused(self) -> None:
        """As with one append."""
        self.told({"appends": [append("push_rules", ["@a:b"])], "idempotency_key": "k"})

        refused = self.told({"appends": [append("push_rules", ["@c:d"])], "idempotency_key": "k"}, 409)

        self.assertEqual("idempotency_key_reused", refused["error"])

    def test_one_bad_row_and_nothing_is_stored(self) -> None:
        """Of any of the appends."""
        for bad, status, code in (
            (append("push_rules", [7]), 400, "bad_row"),
            (append("nope", ["@a:b"]), 404, "unknown_stream"),
            (append("push_rules", ["@a:b"], writer="a b"), 400, "bad_writer"),
            ({"stream": "push_rules"}, 400, "bad_request"),
        ):
            refused = self.told({"appends": [append("push_rules", ["@a:b"]), bad]}, status)

            self.assertEqual(code, refused["error"])
            self.assertEqual([], self.held())

    def test_invalid_batches_are_refused(self) -> None:
        """Neither form, both, and what was never brought."""
        nothing = "0" * 64
        for said, status, code in (
            ({}, 400, "bad_request"),
            ({"appends": [], "staged": nothing}, 400, "bad_request"),
            ({"staged": "x"}, 400, "bad_checksum"),
            ({"staged": nothing}, 404, "no_such_file"),
            (b"{", 400, "bad_json"),
        ):
            self.assertEqual(code, self.told(said, status)["error"])

    def test_new_writers_of_a_stream_are_bounded(self) -> None:
        """Each would be told to every follower, and shown to Prometheus, for ever."""
        many = [append("receipts", receipt(), writer=f"w{number}") for number in range(MAX_WRITERS)]
        self.told({"appends": many})

        refused = self.told({"appends": [append("receipts", receipt(), writer="late")]}, 409)

        self.assertEqual("too_many_writers", refused["error"])
        self.assertIn("late would be one more", refused["message"])
        self.assertEqual(MAX_WRITERS, len(self.log.positions("receipts")))

    def test_writers_that_a_stream_has_go_on(self) -> None:
        """And so do the daemon itself, and other streams."""
        many = [append("receipts", receipt(), writer=f"w{number}") for number in range(MAX_WRITERS)]
        self.told({"appends": many})

        self.told(
            {
                "appends": [
                    append("receipts", receipt(), writer="w7"),
                    append("receipts", receipt()),
                    append("receipts", receipt(), writer=self.instance),
                    append("push_rules", ["@a:b"], writer="late"),
                ]
            }
        )

        self.assertEqual(MAX_WRITERS + 4, len(self.held()))

    def test_one_request_brings_no_more_writers_than_many(self) -> None:
        """They are counted within it, and nothing of it is kept."""
        many = [append("receipts", receipt(), writer=f"w{number}") for number in range(MAX_WRITERS + 1)]

        refused = self.told({"appends": many}, 409)

        self.assertEqual("too_many_writers", refused["error"])
        self.assertEqual([], self.held())
