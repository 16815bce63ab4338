"""``POST /v1/invalidate``: what it asks of whom, and what a refusal says."""

import json
from typing import Any

from twisted.logger import globalLogPublisher

from synrepl.base.access import Key, Keyring, Right
from synrepl.errors import ConfigError, StorageError
from synrepl.homeserver.invalidation_requests import (
    InvalidationReport,
    InvalidationRequest,
    NotInvalidated,
    ProcessReport,
)
from synrepl.homeserver.part import HomeserverPart
from tests.http.builders import Answer, SiteCase

REPORT = InvalidationReport(
    rows=[{"name": "get_user_by_id", "keys": ["@ada:hs"]}],
    ids=[7],
    processes=[ProcessReport(name="master", release="1.163.2", received=True)],
)
BODY = {"name": "get_user_by_id", "key": ["@ada:hs"], "why": "row repaired", "verify": True}
KEYS = (
    Key(name="ops", secret="o" * 32),
    Key(name="writer", secret="w" * 32, rights=frozenset({Right.READ, Right.WRITE})),
    Key(name="receipts", secret="r" * 32, streams=frozenset({"receipts"})),
)


class FakeInvalidator:
    """Remembers what it was asked, and answers `report`, or raises `error`."""

    def __init__(self) -> None:
        self.asked: list[InvalidationRequest] = []
        self.report = REPORT
        self.error: Exception | None = None

    async def invalidate(self, request: InvalidationRequest) -> InvalidationReport:
        """Do nothing."""
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return self.report


class InvalidateTests(SiteCase):
    """A daemon with three keys that watches a homeserver."""

    def setUp(self) -> None:
        super().setUp()
        self.invalidator = FakeInvalidator()
        self.site = self.make_site(
            keys=Keyring(None, KEYS), rooms={"homeserver": HomeserverPart(invalidator=self.invalidator)}
        )
        self.logged: list[str] = []
        observer: Any = self._observe
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def _observe(self, event: Any) -> None:
        if event["log_namespace"] == "synrepl.homeserver.handlers":
            self.logged.append(event["log_format"].format(**event))

    def request_it(self, body: Any, secret: str = "o" * 32) -> Answer:
        """Ask for it, with a key."""
        return self.ask(
            "POST", "/v1/invalidate", json.dumps(body).encode(), f"Authorization: Bearer {secret}"
        )

    def test_an_invalidation_is_written_and_logged(self) -> None:
        """With who and why, and without the key of the entry."""
        answer = self.request_it(BODY)

        self.assertEqual(200, answer.status)
        self.assertEqual([7], answer.json()["ids"])
        process = {"name": "master", "release": "1.163.2", "received": True, "why": ""}
        self.assertEqual([process], answer.json()["processes"])
        asked = InvalidationRequest(name="get_user_by_id", key=["@ada:hs"], why="row repaired", verify=True)
        self.assertEqual([asked], self.invalidator.asked)
        line = "ops wrote 1 row to invalidate get_user_by_id at the homeserver: row repaired"
        self.assertEqual([line], self.logged)

    def test_a_reason_is_one_short_line_of_the_log(self) -> None:
        """Whatever a peer sends."""
        self.request_it(BODY | {"why": "a\nb\x1b[2J" + "x" * 1_000})

        (line,) = self.logged
        self.assertTrue(line.isprintable(), line)
        self.assertLess(len(line), 400)

    def test_a_dry_run_is_not_logged(self) -> None:
        """Nothing was written."""
        self.invalidator.report = InvalidationReport(rows=REPORT.rows)

        self.assertEqual([], self.request_it(BODY | {"dry_run": True}).json()["ids"])
        self.assertEqual([], self.logged)

    def test_a_key_that_may_not(self) -> None:
        """It takes `administer`, and the stream caches."""
        for secret, why in (("w" * 32, "lacks the right administer"), ("r" * 32, "the stream caches")):
            answer = self.request_it(BODY, secret)

            self.assertEqual(403, answer.status)
            self.assertIn(why, answer.json()["message"])
        self.assertEqual([], self.invalidator.asked)

    def test_failures_of_an_invalidation_are_answered(self) -> None:
        """What happened, as it was said."""
        for error, status, code in (
            (ConfigError("no cache is called x"), 400, "bad_request"),
            (NotInvalidated("nothing was written: Redis: refused"), 502, "not_invalidated"),
            (NotInvalidated("another one is going on", code="busy"), 503, "busy"),
            (StorageError(op="connect", why="refused"), 502, "not_invalidated"),
        ):
            self.invalidator.error = error
            answer = self.request_it(BODY)

            self.assertEqual((status, code), (answer.status, answer.json()["error"]))
            self.assertIn(str(error), answer.json()["message"])

    def test_a_body_of_no_use(self) -> None:
        """Nothing is done."""
        for body, why in (
            ({}, "name a cache"),
            ({"name": "a", "keys": ["b"]}, "did you mean key"),
            ({"name": 7}, "name"),
        ):
            answer = self.request_it(body)

            self.assertEqual(400, answer.status)
            self.assertIn(why, answer.json()["message"])
        self.assertEqual([], self.invalidator.asked)

    def test_a_daemon_without_a_homeserver(self) -> None:
        """It says which option gives it one."""
        self.site = self.make_site()
        answer = self.request_it(BODY)

        self.assertEqual((404, "not_found"), (answer.status, answer.json()["error"]))
        self.assertIn("--homeserver", answer.json()["message"])
