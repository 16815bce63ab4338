"""How far a stream can be waited for."""

from tests.http.builders import BROKEN, SiteCase, receipt, typing


class AllocatedTests(SiteCase):
    """Followers ask before they wait."""

    def test_the_highest_token_and_who_wrote_how_far(self) -> None:
        """Of all writers together: tokens of a stream are allocated in one sequence."""
        self.receipts(2)
        self.receipts(1, writer="w2")

        answer = self.get("/v1/streams/receipts/allocated")

        self.assertEqual(200, answer.status)
        self.assertEqual(
            {"stream": "receipts", "allocated": 3, "positions": {"master": 2, "w2": 3}}, answer.json()
        )

    def test_a_stream_in_memory(self) -> None:
        """It has tokens as others have."""
        self.post("typing", [typing("@ada:hs.example")])

        answer = self.get("/v1/streams/typing/allocated").json()

        self.assertEqual(1, answer["allocated"])

    def test_a_stream_without_facts_has_no_token(self) -> None:
        """Nothing can be waited for."""
        answer = self.get("/v1/streams/events/allocated").json()

        self.assertEqual({"stream": "events", "allocated": 0, "positions": {}}, answer)

    def test_what_is_not_durable_yet_was_not_told_to_anybody(self) -> None:
        """Nor is it counted when its commit has failed."""
        self.receipts(1)
        self.engine.fail_next(BROKEN)
        self.post("receipts", [receipt()])

        self.assertEqual(1, self.get("/v1/streams/receipts/allocated").json()["allocated"])

    def test_a_stream_that_nobody_knows(self) -> None:
        """Refused as everywhere."""
        answer = self.get("/v1/streams/nonsense/allocated")

        self.assertEqual((404, "unknown_stream"), (answer.status, answer.json()["error"]))

    def test_the_secret_is_wanted(self) -> None:
        """Positions tell how busy a homeserver is."""
        self.site = self.make_site(secret="correct horse")

        refused = self.get("/v1/streams/receipts/allocated")
        told = self.get("/v1/streams/receipts/allocated", "Authorization: Bearer correct horse")

        self.assertEqual([401, 200], [refused.status, told.status])
