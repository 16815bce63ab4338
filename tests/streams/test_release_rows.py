"""Rows that the classes of 60 real releases made go in and come out (tests/golden/rows/README.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from synrepl.wire.dialect import Dialect
from tests.http.builders import SiteCase
from tests.releases.rows import TABLE, fields_of, newest, sent, stored

RECORDED: list[dict[str, str]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden/rows/rows.jsonl").read_text("utf-8").splitlines()
]
RELEASES = list(dict.fromkeys(name for one in RECORDED for name in one["releases"].split()))


@pytest.mark.parametrize("name", RELEASES)
def test_a_follower_of_the_release_gets_the_same_bytes(name: str) -> None:
    """Every kind of row of every stream, from a writer of that release."""
    dialect = Dialect.parse(name)
    rows = [one for one in RECORDED if name in one["releases"].split()]
    kinds = {(stream, tag) for stream, kinds in fields_of(dialect).items() for tag in kinds}

    assert kinds == {(one["stream"], one["tag"]) for one in rows}
    for one in rows:
        assert one["line"] == sent(stored(one["line"], dialect), dialect)


def test_every_third_release_is_recorded() -> None:
    """From 1.0 on, and five between the ones that are installed whole."""
    third = {f"1.{minor}" for minor in range(0, 163, 3)}

    assert third | {"1.76", "1.85", "1.100", "1.110", "1.140"} == set(RELEASES)


class PageTests(SiteCase):
    """Pages of rows over HTTP."""

    def test_readers_get_the_newest_shape(self) -> None:
        """With the documented value for each field that the release lacks."""
        expected = dict[str, list[Any]]()
        for one in RECORDED:
            dialect = Dialect.parse(one["releases"].split()[0])
            fact = stored(one["line"], dialect)
            answer = self.post(one["stream"], json.loads(fact.rows))
            self.assertEqual(200, answer.status, (one, answer.body))
            expected.setdefault(one["stream"], []).append(
                newest(one["stream"], one["tag"], one["line"], dialect)
            )

        for stream, rows in expected.items():
            page = self.get(f"/v1/streams/{stream}/rows?limit=1000").json()
            self.assertEqual(rows, [row for _, row in page["updates"]], stream)

    def test_every_stream_of_the_releases_is_here(self) -> None:
        """Those that the newest lacks, too."""
        ours = {stream.name for stream in TABLE if stream.span.since < (2, 0, 0)}

        self.assertEqual(ours, {one["stream"] for one in RECORDED})
