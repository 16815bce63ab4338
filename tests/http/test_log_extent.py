"""How much there is to read, for whoever plans it."""

from synrepl.http_api.shapes import EXTENT as SHAPE
from synrepl.http_api.shapes import find_mismatch
from synrepl.streams.digest import EMPTY
from tests.http.builders import SiteCase

EXTENT = "/v1/extent"


class ExtentTests(SiteCase):
    """Plans are made of these answers: they must say the same as reading would."""

    def test_an_extent_ends_at_a_fact_and_says_where_everybody_is_then(self) -> None:
        """Together with what a reader had it is its next position."""
        self.receipts(3, writer="w1")
        self.post("caches", [["name", ["key"], 1]], writer="w2")
        self.receipts(1, writer="w1")
        facts = self.engine.facts

        whole = self.get(EXTENT).json()
        two = self.get(f"{EXTENT}?since=2&limit=2").json()
        caches = self.get(f"{EXTENT}?streams=caches").json()

        self.assertEqual(
            {
                "since": 0,
                "serial": 5,
                "epoch": 1,
                "digest": facts[4].digest,
                "history": self.log.history,
                "facts": 5,
                "bytes": sum(len(fact.rows) for fact in facts),
                "clock": {"caches": {"w2": 1}, "receipts": {"w1": 4}},
                "committed_at_ms": facts[4].committed_at_ms,
                "trimmed_upto": 0,
                "head": 5,
            },
            whole,
        )
        self.assertEqual((4, 2, facts[3].digest), (two["serial"], two["facts"], two["digest"]))
        self.assertEqual({"caches": {"w2": 1}, "receipts": {"w1": 3}}, two["clock"])
        self.assertEqual((5, 1, {"caches": {"w2": 1}}), (caches["serial"], caches["facts"], caches["clock"]))

    def test_an_empty_log_and_the_head_have_nothing(self) -> None:
        """A reader that is there stays where it is."""
        nothing = self.get(EXTENT).json()
        self.receipts(1)
        at_head = self.get(f"{EXTENT}?since=1").json()

        self.assertEqual(
            (0, 0, EMPTY, {}), tuple(nothing[name] for name in ("serial", "facts", "digest", "clock"))
        )
        self.assertEqual((1, 0, {}), tuple(at_head[name] for name in ("serial", "facts", "clock")))

    def test_below_what_was_trimmed_there_is_no_digest(self) -> None:
        """Clients took such an answer for that of another program."""
        self.receipts(5)
        self.wait(self.log.trim(3, lambda *_: None, 100))

        trimmed = self.get(f"{EXTENT}?since=1&upto=1&compacted=true").json()

        self.assertEqual((1, None), (trimmed["serial"], trimmed["digest"]))
        self.assertEqual("", find_mismatch(trimmed, SHAPE))

    def test_a_reader_of_another_history_is_reported(self) -> None:
        """Before anything is planned on it."""
        self.receipts(2)

        for query, code in (
            ("since=9", "ahead_of_log"),
            (f"since=1&digest={'1' * 64}", "fork"),
            ("history=another", "other_history"),
        ):
            self.assertEqual(code, self.get(f"{EXTENT}?{query}").json()["error"])
