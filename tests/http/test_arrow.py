"""The changelog in columns: the same facts as the lines, field by field."""

import json
from importlib.util import find_spec
from unittest.mock import patch

import pytest

from tests.http.builders import Answer, SiteCase, receipt

CHANGELOG = "/v1/changelog"
ACCEPT = "Accept: application/vnd.apache.arrow.stream"


class RefusedTests(SiteCase):
    """When there is no Arrow."""

    def test_without_pyarrow_there_is_none(self) -> None:
        """And the text says what is missing, and what can be had."""
        with patch("synrepl.transports.http.arrow.find_spec", return_value=None):
            answer = self.get(CHANGELOG, ACCEPT)

        self.assertEqual((406, "not_acceptable"), (answer.status, answer.json()["error"]))
        for word in ("where the daemon runs", "synrepl[arrow]", "application/x-ndjson"):
            self.assertIn(word, answer.json()["message"])

    def test_it_holds_facts_alone_and_has_an_end(self) -> None:
        """Whatever else is asked for cannot be told in columns."""
        for query in ("follow=true", "epoch_starts=true", "receipts=true"):
            answer = self.get(f"{CHANGELOG}?{query}", ACCEPT)

            self.assertEqual((406, "not_acceptable"), (answer.status, answer.json()["error"]), query)


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
class ArrowTests(SiteCase):
    """What a program that reads columns gets."""

    def read(self, answer: Answer) -> list[dict[str, object]]:
        """The facts, their rows parsed."""
        import pyarrow as pa

        self.assertEqual(
            (200, "application/vnd.apache.arrow.stream"), (answer.status, answer.headers["content-type"])
        )
        self.assertTrue(answer.body.endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00"))
        facts: list[dict[str, object]] = pa.ipc.open_stream(answer.body).read_all().to_pylist()
        for fact in facts:
            self.assertIsInstance(fact["rows"], str)
            fact["rows"] = json.loads(str(fact["rows"]))
        return facts

    def test_the_columns_are_the_fields(self) -> None:
        """In the same order, so that one schema does for both."""
        for _ in range(3):
            self.post("receipts", *[[receipt("@\u00e4:h")]] * 900, writer="w\u00e4")
        self.post("caches", [["name", ["key"], 1]])
        for query in ("", "?streams=caches", "?checksum=true&since=2690", "?limit=5", "?since=2701"):
            answer = self.get(CHANGELOG + query, ACCEPT)
            lines = self.get(CHANGELOG + query)

            expected = [list(line.items()) for line in lines.lines()]
            self.assertEqual(expected, [list(fact.items()) for fact in self.read(answer)], query)
            for name in ("synrepl-serial", "synrepl-epoch", "synrepl-history"):
                self.assertEqual(lines.headers[name], answer.headers[name])

    def test_refusals_are_json(self) -> None:
        """As everywhere."""
        answer = self.get(f"{CHANGELOG}?since=9", ACCEPT)

        self.assertEqual((409, "ahead_of_log"), (answer.status, answer.json()["error"]))
