"""Idempotency keys: each belongs to a stream and to the peer that sent it."""

import json
from typing import Any

from synrepl.base.access import ALL_RIGHTS, Key, Keyring, Right
from synrepl.transports.http.append_routes import MAX_KEY
from tests.http.builders import SiteCase, receipt

WRITE = frozenset({Right.READ, Right.WRITE})
REPLICATE = frozenset({Right.READ, Right.WRITE, Right.REPLICATE})
KEYS = (
    Key(name="ada", secret="of ada", rights=WRITE),
    Key(name="bob", secret="of bob", rights=WRITE),
    Key(name="laptop", secret="of laptop", rights=REPLICATE),
    Key(name="paris", secret="of paris", rights=ALL_RIGHTS),
)


class OwnersTests(SiteCase):
    """A primary with keys of several peers."""

    def setUp(self) -> None:
        super().setUp()
        self.site = self.make_site(keys=Keyring("shared", KEYS))

    def append(
        self, secret: str, user: str, key: str, *, stream: str = "push_rules", query: str = ""
    ) -> tuple[int, Any]:
        """Append one fact; the status, and the serial or the error."""
        row = [user] if stream == "push_rules" else receipt(user)
        body = json.dumps({"facts": [[row]], "idempotency_key": key}).encode()
        path = f"/v1/streams/{stream}/facts{query}"
        answer = self.ask("POST", path, body, f"Authorization: Bearer {secret}")
        told = answer.json()
        return answer.status, told["first_serial"] if answer.status == 200 else told["error"]

    def batch(self, secret: str, key: str, *users: str) -> Any:
        """Append a batch, each fact for itself; their serials."""
        appends = [{"stream": "push_rules", "facts": [[[user]]]} for user in users]
        body = json.dumps({"appends": appends, "idempotency_key": key}).encode()
        answer = self.ask("POST", "/v1/facts", body, f"Authorization: Bearer {secret}")
        self.assertEqual(200, answer.status, answer.body)
        return [one["first_serial"] for one in answer.json()["appends"]]

    def test_the_key_of_one_peer_does_not_make_the_request_of_another_fail(self) -> None:
        """Both chose the same words."""
        self.assertEqual((200, 1), self.append("of ada", "@a:hs", "import-7"))
        self.assertEqual((200, 2), self.append("of bob", "@b:hs", "import-7"))
        self.assertEqual((200, 3), self.append("shared", "@c:hs", "import-7"))

        self.assertEqual((200, 2), self.append("of bob", "@b:hs", "import-7"))
        self.assertEqual((409, "idempotency_key_reused"), self.append("of bob", "@x:hs", "import-7"))
        self.assertEqual(3, self.log.head.serial)

    def test_one_key_serves_several_streams(self) -> None:
        """It belongs to the stream, too."""
        self.assertEqual((200, 1), self.append("of ada", "@a:hs", "k"))
        self.assertEqual((200, 2), self.append("of ada", "@a:hs", "k", stream="receipts"))

    def test_a_key_that_looks_like_a_part_of_a_batch_is_none(self) -> None:
        """Neither of another peer nor of the same."""
        self.append("of ada", "@x:hs", "import-7/0")
        self.append("of bob", "@x:hs", "import-7/0")

        self.assertEqual([3, 4], self.batch("of bob", "import-7", "@a:hs", "@b:hs"))
        self.assertEqual([3, 4], self.batch("of bob", "import-7", "@a:hs", "@b:hs"))
        self.assertEqual(4, self.log.head.serial)

    def test_the_longest_key_serves_a_batch(self) -> None:
        """The parts of a batch take no room in it."""
        key = "k" * MAX_KEY

        self.assertEqual([1, 2], self.batch("of ada", key, "@a:hs", "@b:hs"))
        self.assertEqual([1, 2], self.batch("of ada", key, "@a:hs", "@b:hs"))

    def test_a_replica_that_may_administer_names_the_owner(self) -> None:
        """So a request that is repeated at the primary itself finds its receipt."""
        self.append("of paris", "@a:hs", "k", query="?owner=ada")
        self.append("of paris", "@s:hs", "k", query="?owner=")

        self.assertEqual((200, 1), self.append("of ada", "@a:hs", "k"))
        self.assertEqual((200, 2), self.append("shared", "@s:hs", "k"))
        self.assertEqual((200, 3), self.append("of paris", "@p:hs", "k"))

    def test_another_replica_cannot_use_up_the_keys_of_others(self) -> None:
        """What it forwards for them is theirs and its own."""
        self.append("of laptop", "@l:hs", "k", query="?owner=ada")
        self.append("of laptop", "@m:hs", "k", query="?owner=bob")
        self.append("of laptop", "@n:hs", "k")

        self.assertEqual((200, 4), self.append("of ada", "@a:hs", "k"))
        self.assertEqual((200, 5), self.append("of bob", "@b:hs", "k"))
        self.assertEqual((200, 1), self.append("of laptop", "@l:hs", "k", query="?owner=ada"))

    def test_an_owner_that_nobody_can_have_is_refused(self) -> None:
        """It would be stored with the receipt."""
        for owner in ("%0a", "x" * 256):
            with self.subTest(owner):
                refused = self.append("of paris", "@a:hs", "k", query=f"?owner={owner}")

                self.assertEqual((400, "bad_request"), refused)
