"""Bugs of bodies that pass through a replica."""

import json
from typing import Any

from tests.http.builders import receipt
from tests.replicas.http.test_write_forwarder import RelayCase


class BodyTests(RelayCase):
    """A writer whose daemon is a replica."""

    def test_a_large_body_passes_through_a_replica_whole(self) -> None:
        """Case 32, devpi #1102: after a change of the client library, a relayed body was cut off at 64 KB.

        Here: every byte of it reaches the primary, however it is split in transit.
        """
        facts: list[list[Any]] = [[receipt(f"@{'u' * 900}{number}:hs")] for number in range(300)]
        body = json.dumps({"facts": facts}).encode()
        whole = self.request("POST", "/v1/streams/receipts/facts", body)
        talk = self.talk()

        for start in range(0, len(whole), 1_000):
            talk.say(whole[start : start + 1_000])
        self.clock.advance(0)  # a large body is validated in a turn of its own
        self.feed()

        self.assertGreater(len(body), 4 * 65_536)
        self.assertEqual(200, talk.answer().status)
        ((relayed, _),) = self.primary.asked
        self.assertEqual(facts, json.loads(relayed)["facts"])
        self.assertEqual(
            [self.table["receipts"].canonical_fact(fact) for fact in facts],
            [fact.rows for fact in self.primary_engine.facts],
        )
