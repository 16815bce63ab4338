"""Reading a copy that does not hold everything: it says so, and never gives an empty answer."""

from collections.abc import Mapping
from types import MappingProxyType

from synrepl.base.notes import Notes
from synrepl.replication.addresses import Address
from synrepl.replication.hooks import Alone
from synrepl.replication.serving.read_gate import ReadGate
from tests.http.builders import CATCH_UP, SiteCase, receipt

PRIMARY = Address("tcp:berlin:9092", "http://berlin:9093")
UPDATES = f"{CATCH_UP}/push_rules/t?from_token=0&upto_token=9"


class Copy(Alone):
    """What a copy is."""

    role = "replica"
    is_primary = False
    primary = PRIMARY


class FilteredTests(SiteCase):
    """A copy of `receipts` by `master`."""

    more: Mapping[str, str] = MappingProxyType({})
    """More paths, each with what is not held."""

    def setUp(self) -> None:
        super().setUp()
        self.receipts(2)
        self.post("receipts", [receipt()], writer="other")
        self.post("push_rules", [["@ada:hs.example"]])
        note = Notes(filter='{"streams":["receipts"],"writers":["master"]}')
        self.publisher.read_gate = ReadGate(lambda: note, Copy())

    def test_what_is_not_held_is_refused_by_name(self) -> None:
        """With 200 and nothing a reader would take all of it for read."""
        paths = {
            "/v1/streams/push_rules/rows": "stream push_rules",
            "/v1/streams/receipts/rows?writer=other": "writer other",
            "/v1/streams/push_rules/allocated": "stream push_rules",
            "/v1/changelog?streams=push_rules,receipts": "stream push_rules",
            "/v1/changelog?writers=other": "writer other",
            "/v1/extent?streams=push_rules": "stream push_rules",
            **self.more,
        }
        for path, named in paths.items():
            answer = self.get(path)
            self.assertEqual((409, "filtered"), (answer.status, answer.json()["error"]), path)
            self.assertEqual(
                f"the {named} is not here: this copy holds only receipts of the writer master;"
                " ask tcp:berlin:9092, http://berlin:9093",
                answer.json()["message"],
            )
            self.assertEqual((False, str(PRIMARY)), (answer.json()["retryable"], answer.json()["moved_to"]))

    def test_workers_of_synapse_are_refused_in_their_form(self) -> None:
        """A gap that they fetch here stays a gap."""
        answer = self.get(UPDATES)

        self.assertEqual((409, "M_UNKNOWN"), (answer.status, answer.json()["errcode"]))
        self.assertIn("this copy holds only receipts", answer.json()["error"])

    def test_a_filtered_copy_serves_its_streams(self) -> None:
        """And nothing is told of other writers."""
        rows = self.get("/v1/streams/receipts/rows?writer=master").json()
        allocated = self.get("/v1/streams/receipts/allocated").json()

        self.assertEqual([1, 2], [token for token, _ in rows["updates"]])
        self.assertEqual({"stream": "receipts", "allocated": None, "positions": {"master": 2}}, allocated)

    def test_a_changelog_says_what_it_is_a_changelog_of(self) -> None:
        """Who names no stream takes it for the whole log."""
        for path in ("/v1/changelog", "/v1/extent"):
            headers = self.get(path).headers
            self.assertEqual(
                ("receipts", "master"), (headers["synrepl-holds-streams"], headers["synrepl-holds-writers"])
            )
        self.publisher.read_gate = ReadGate()
        self.assertNotIn("synrepl-holds-streams", self.get("/v1/changelog").headers)

    def test_status_names_no_positions_of_what_is_not_held(self) -> None:
        """They came with the copy, without the facts."""
        self.assertEqual(
            {"receipts": {"writers": {"master": 2}, "kept": True}}, self.get("/v1/status").json()["streams"]
        )

    def test_long_lists_are_cut(self) -> None:
        """A message is read by people."""
        names = ",".join(f'"s{number:02}"' for number in range(14))
        held = ReadGate(lambda: {"filter": f'{{"streams":[{names}]}}'})

        self.assertTrue(held.describe().endswith("s08, s09 and 4 more"))
        self.assertEqual("this copy holds only s01", held.describe({"s01", "push_rules"}))


class JoiningTests(SiteCase):
    """A replica without a whole copy."""

    more: tuple[str, ...] = ()
    """More paths."""

    def setUp(self) -> None:
        super().setUp()
        self.copy = Copy()
        self.copy.is_whole = False
        self.publisher.read_gate = ReadGate(role=self.copy)

    def test_reads_are_refused_until_the_copy_is_whole(self) -> None:
        """With 200 and nothing a reader would take it for a log without facts."""
        paths = (
            "/v1/streams/receipts/rows",
            "/v1/streams/receipts/allocated",
            "/v1/changelog",
            "/v1/changelog?follow=true",
            "/v1/extent",
            *self.more,
        )
        for path in paths:
            answer = self.get(path)
            told = answer.json()
            self.assertEqual(
                (503, "not_ready", "5"), (answer.status, told["error"], answer.headers["retry-after"]), path
            )
            self.assertEqual((True, str(PRIMARY)), (told["retryable"], told["moved_to"]))
            self.assertEqual(
                "this replica has no whole copy yet (joining): ask tcp:berlin:9092, http://berlin:9093",
                told["message"],
            )
        self.assertEqual(503, self.get(UPDATES).status)
        self.copy.is_whole = True
        self.assertEqual([200] * 5, [self.get(path).status for path in (*paths[:3], paths[4], "/v1/status")])

    def test_its_status_is_reported(self) -> None:
        """Who asks how it is gets an answer."""
        self.assertEqual([200, 200], [self.get(path).status for path in ("/v1/status", "/status")])
