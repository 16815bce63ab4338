"""Pages of rows: ours, and those that Synapse's workers ask for."""

import json
from typing import Any

from synrepl.replication.retention import keys_of
from synrepl.transports.http.row_routes import BEHIND_SECONDS
from synrepl.wire.dialect import Dialect
from tests.http.builders import CATCH_UP, SiteCase, Talk, receipt, typing

EVENT = ["ev", ["$e", "!r", "m.room.message", None, None, None, None, False, False]]


class RowsTests(SiteCase):
    """GET of rows: honest about what it covers."""

    path = "/v1/streams/receipts/rows"

    def page(self, query: str = "") -> Any:
        """The tokens given, up to where, and whether there is more."""
        answer = self.get(f"{self.path}?{query}").json()
        return [token for token, _ in answer["updates"]], answer["upto"], answer["limited"]

    def test_rows_come_from_exclusive_to_inclusive(self) -> None:
        """Asking from the last answer's `upto` neither repeats nor skips."""
        self.receipts(5)

        self.assertEqual(([1, 2, 3, 4, 5], 5, False), self.page())
        self.assertEqual(([3, 4], 4, False), self.page("from=2&upto=4"))
        self.assertEqual(([3, 4], 4, True), self.page("from=2&limit=2"))
        self.assertEqual(([], 5, False), self.page("from=5"))

    def test_a_page_claims_nothing_beyond_the_head(self) -> None:
        """A reader that believed it would skip what is written next."""
        self.receipts(2)

        self.assertEqual(([1, 2], 2, False), self.page("upto=99"))
        self.assertEqual(([], 0, False), self.page("upto=99&writer=nobody"))

    def test_a_fact_is_never_split(self) -> None:
        """Half a fact is a state that never was."""
        three = [receipt("@a:h"), receipt("@b:h"), receipt("@c:h")]
        self.post("receipts", three, three)

        self.assertEqual(([1, 1, 1], 1, True), self.page("limit=1"))
        self.assertEqual(([1, 1, 1], 1, True), self.page("limit=5"))
        self.assertEqual(([1] * 3 + [2] * 3, 2, False), self.page("limit=6"))

    def test_writers_are_kept_apart(self) -> None:
        """Positions are per writer, and so are pages."""
        self.receipts(1)
        self.receipts(1, writer="w2")
        self.receipts(1)

        self.assertEqual(([1, 3], 3, False), self.page())
        self.assertEqual(([2], 2, False), self.page("writer=w2"))

    def test_a_reader_from_a_former_life_gets_all_of_this_one(self) -> None:
        """Tokens of memory streams restart: without this it would wait for token 51 for ever."""
        self.post("typing", [typing("@ada:h")], [typing()])
        self.path = "/v1/streams/typing/rows"

        self.assertEqual(([1, 2], 2, False), self.page("from=50"))
        self.assertEqual(([1, 2], 2, False), self.page("from=50&upto=60"))
        self.path = "/v1/streams/receipts/rows"
        self.receipts(2)
        self.assertEqual(([], 2, False), self.page("from=50"))

    def test_what_was_trimmed_without_a_trace_is_told(self) -> None:
        """Nothing stands for it where rows have no key: a reader that was away would miss it in silence."""
        audit = {"name": "audit", "key": [], "kind": "kept", "columns": {"what": "str"}, "writers": []}
        self.assertEqual(200, self.ask("POST", "/v1/streams", json.dumps(audit).encode()).status)
        keys = keys_of(self.table)
        for number in range(1, 7):
            self.post("audit", [[f"a{number}"]])
            self.post("receipts", [receipt()])
        self.wait(self.log.trim(self.log.head.serial - 4, keys, 100))

        def lost(stream: str, after: int, upto: int, more: str = "") -> Any:
            pages = (
                self.get(f"/v1/streams/{stream}/rows?from={after}&upto={upto}{more}").json(),
                self.get(f"{CATCH_UP}/{stream}/t?from_token={after}&upto_token={upto}").json(),
            )
            return [page.get("lost") for page in pages]

        there = self.get("/v1/streams/audit/rows?from=2").json()["updates"]
        self.assertEqual([[5, ["a5"]], [6, ["a6"]]], there)
        self.assertEqual([[[2, 4]]] * 2, lost("audit", 2, 6))
        self.assertEqual([[[2, 4]]] * 2, lost("audit", 2, 4))
        self.assertEqual([[[2, 4]]] * 2, lost("audit", 2, 6, "&limit=1"))
        self.assertEqual([None] * 2, lost("audit", 4, 6))
        self.assertEqual([None] * 2, lost("audit", 6, 6))
        self.assertEqual([None] * 2, lost("receipts", 2, 6), "the newest of each key is there")

    def test_bad_queries_are_refused(self) -> None:
        """A typing error must not be read as `everything`."""
        for query in ("from=x", "from=-1", "from=", "upto=1.5", "limit=0", "from=1&from=2", "from=%FF"):
            answer = self.get(f"{self.path}?{query}")
            self.assertEqual((400, "bad_request"), (answer.status, answer.json()["error"]), query)
        answer = self.get(f"{self.path}?writer=a%20b")
        self.assertEqual((400, "bad_writer"), (answer.status, answer.json()["error"]))


class CatchUpTests(SiteCase):
    """What real workers ask, answered as Synapse does."""

    def updates(self, stream: str, after: int, upto: int, *headers: str, more: str = "") -> Any:
        """The answer to a worker."""
        query = f"from_token={after}&upto_token={upto}{more}"
        return self.get(f"{CATCH_UP}/{stream}/abcdefghij?{query}", *headers).json()

    def test_the_answer_has_synapses_keys(self) -> None:
        """Real workers index it without asking."""
        self.receipts(2)

        answer = self.updates("receipts", 1, 2)

        self.assertEqual({"updates": [[2, receipt()]], "upto_token": 2, "limited": False}, answer)

    def test_a_page_claims_nothing_beyond_the_head(self) -> None:
        """A worker that heard of more elsewhere asks again, rather than skip what this copy still lacks."""
        self.receipts(2)

        row = [2, receipt()]
        self.assertEqual({"updates": [row], "upto_token": 2, "limited": True}, self.updates("receipts", 1, 9))
        self.assertEqual({"updates": [], "upto_token": 0, "limited": False}, self.updates("receipts", 50, 0))
        self.assertEqual({"updates": [], "upto_token": 2, "limited": False}, self.updates("receipts", 50, 9))

    def test_a_copy_that_is_behind_answers_when_it_has_more(self) -> None:
        """Real workers ask again without a pause."""
        self.receipts(2)
        path = f"{CATCH_UP}/receipts/t?from_token=2&upto_token=3"

        def asked() -> Talk:
            talk = self.talk()
            talk.say(self.request("GET", path))
            return talk

        early = asked()
        self.assertEqual(b"", early.heard)
        self.clock.advance(BEHIND_SECONDS)
        late = asked()
        self.receipts(1)

        self.assertEqual({"updates": [], "upto_token": 2, "limited": True}, early.answer().json())
        there = {"updates": [[3, receipt()]], "upto_token": 3, "limited": False}
        self.assertEqual(there, late.answer().json())

    def test_a_writer_in_memory_that_began_again_is_not_waited_for(self) -> None:
        """A worker would ask for ever, and never hear that the tokens begin again."""
        self.post("typing", [typing("@ada:h")])

        answer = self.updates("typing", 40, 50)

        self.assertEqual({"updates": [], "upto_token": 1, "limited": False}, answer)

    def test_long_answers_come_in_pages(self) -> None:
        """A worker goes on from `upto_token` while `limited`."""
        self.post("receipts", *[[receipt()]] * 999)
        self.clock.pump([0, 0])
        self.post("receipts", *[[receipt()]] * 200)

        first = self.updates("receipts", 0, 1_199)
        second = self.updates("receipts", first["upto_token"], 1_199)

        self.assertEqual((1_000, True), (first["upto_token"], first["limited"]))
        self.assertEqual((1_199, False), (second["upto_token"], second["limited"]))
        self.assertEqual(list(range(1, 1_200)), [token for token, _ in first["updates"] + second["updates"]])

    def test_host_names_the_writer(self) -> None:
        """That is how real workers, which share one address here, say whose rows they want."""
        self.site = self.make_site(allowed_hosts=("proxy.example",))
        self.receipts(1)
        self.receipts(1, writer="stream_writer1")

        def tokens(*headers: str, more: str = "") -> list[int]:
            answer = self.updates("receipts", 0, 9, *headers, more=more)
            return [token for token, _ in answer["updates"]]

        self.assertEqual([2], tokens("Host: stream_writer1:80"))
        self.assertEqual([1], tokens("Host: proxy.example:80"))
        self.assertEqual([2], tokens("Host: proxy.example:80", more="&writer=stream_writer1"))
        self.assertEqual([1], tokens(more="&writer=master"))

    def test_rows_are_cut_to_a_dialect_that_was_said(self) -> None:
        """An old worker dies of a field too many."""
        self.post("events", [EVENT, ["state-all", ["!r"]]])
        whole = self.updates("events", 0, 1)["updates"]
        self.site = self.make_site(dialect=Dialect.parse("1.22"))
        cut = self.updates("events", 0, 1)["updates"]

        self.assertEqual([[1, EVENT], [1, ["state-all", ["!r"]]]], whole)
        self.assertEqual([[1, ["ev", ["$e", "!r", "m.room.message", None, None, None]]]], cut)

    def test_rows_are_cut_to_the_release_that_a_worker_names(self) -> None:
        """One port serves all releases, and tells by the User-Agent of real workers which one asks."""
        self.post("receipts", [receipt()])
        whole = [[1, receipt()]]
        cut = [[1, receipt()[:4] + receipt()[5:]]]  # thread_id is newer
        cases = {
            "Synapse/1.66.0": cut,
            "Synapse/1.66.0rc1 (b=develop,abcdef) a suffix": cut,
            "Synapse/1.98": whole,
            "Synapse/0.20.0": whole,
            "Synapse": whole,
            "treq Synapse/1.66.0": whole,
        }

        for agent, updates in cases.items():
            with self.subTest(agent):
                answer = self.updates("receipts", 0, 1, f"User-Agent: {agent}")
                self.assertEqual(updates, answer["updates"])

    def test_what_is_set_goes_before_what_a_worker_names(self) -> None:
        """The operator knows better."""
        self.post("events", [EVENT])
        self.site = self.make_site(dialect=Dialect.parse("1.22"))

        answer = self.updates("events", 0, 1, "User-Agent: Synapse/1.66.0")

        self.assertEqual([[1, ["ev", ["$e", "!r", "m.room.message", None, None, None]]]], answer["updates"])

    def test_a_stream_that_the_dialect_lacks_is_unknown(self) -> None:
        """As it would be to a server of that release."""
        self.site = self.make_site(dialect=Dialect.parse("1.22"))

        self.assertEqual(
            {"errcode": "M_UNKNOWN", "error": "Unknown stream"}, self.updates("sticky_events", 0, 1)
        )

    def test_mistakes_are_told_in_synapses_words(self) -> None:
        """Status and body are what was recorded from real servers."""
        ok = "from_token=0&upto_token=5"
        unrecognized = {"errcode": "M_UNRECOGNIZED", "error": "Unrecognized request"}
        cases: list[tuple[str, str, int, Any]] = [
            ("GET", f"/nope/abc?{ok}", 400, {"errcode": "M_UNKNOWN", "error": "Unknown stream"}),
            ("GET", f"/caches?{ok}", 404, unrecognized),
            ("GET", f"/caches/?{ok}", 404, unrecognized),
            ("GET", f"/caches/abc/?{ok}", 404, unrecognized),
            ("POST", f"/caches/abc?{ok}", 405, unrecognized),
            ("PUT", f"/caches/abc?{ok}", 405, unrecognized),
            (
                "GET",
                "/caches/abc?upto_token=5",
                400,
                {
                    "errcode": "M_MISSING_PARAM",
                    "error": "Missing required integer query parameter from_token",
                },
            ),
            (
                "GET",
                "/caches/abc?from_token=0&to_token=5",
                400,
                {
                    "errcode": "M_MISSING_PARAM",
                    "error": "Missing required integer query parameter upto_token",
                },
            ),
            (
                "GET",
                "/caches/abc?from_token=abc&upto_token=5",
                400,
                {"errcode": "M_INVALID_PARAM", "error": "Query parameter from_token must be an integer"},
            ),
            (
                "GET",
                "/caches/abc?from_token=-5&upto_token=5",
                400,
                {
                    "errcode": "M_INVALID_PARAM",
                    "error": "Query parameter from_token must be a positive integer.",
                },
            ),
        ]
        for method, path, status, body in cases:
            with self.subTest(path):
                answer = self.ask(method, CATCH_UP + path)
                self.assertEqual((status, body), (answer.status, answer.json()))

    def test_head_is_answered_without_a_body(self) -> None:
        """Load balancers ask so."""
        answer = self.ask("HEAD", f"{CATCH_UP}/caches/abc?from_token=0&upto_token=0")

        self.assertEqual((200, b""), (answer.status, answer.body))

    def test_a_wrong_secret_is_500_as_in_synapse(self) -> None:
        """Real servers fail there instead of refusing, and workers know it as that."""
        self.site = self.make_site(secret="s3cret")
        path = f"{CATCH_UP}/caches/abc?from_token=0&upto_token=0"
        right = "Authorization: Bearer s3cret"
        wrong: list[tuple[str, ...]] = [(), ("Authorization: Bearer x",), (right, right)]

        for headers in wrong:
            answer = self.get(path, *headers)
            self.assertEqual(
                (500, {"errcode": "M_UNKNOWN", "error": "Internal server error"}),
                (answer.status, answer.json()),
            )
        self.assertEqual(200, self.get(path, right).status)
