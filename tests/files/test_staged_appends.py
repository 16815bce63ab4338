"""Facts that are brought as a file first, and appended by its checksum."""

import json
from hashlib import sha256

from tests.files.site import FilesSiteCase
from tests.http.test_batch_append import AppendsCase, append


class StagedTests(AppendsCase, FilesSiteCase):
    """A body that was uploaded before."""

    def test_a_staged_batch_is_appended_once(self) -> None:
        """It is brought first, perhaps by many; the word that makes facts of it can be said again."""
        body = json.dumps(
            {"appends": [append("push_rules", ["@a:b"]), append("push_rules", ["@c:d"])]}
        ).encode()
        self.put(body)
        said = {"staged": sha256(body).hexdigest(), "idempotency_key": "q/7/0"}

        self.assertEqual([], self.held())
        first, again = self.told(said), self.told(said)

        self.assertEqual(first, again)
        self.assertEqual(2, len(self.held()))

    def test_a_staged_file_without_appends_is_refused(self) -> None:
        """As such a body is without a file."""
        body = b'{"idempotency_key": "k"}'
        self.put(body)

        refused = self.told({"staged": sha256(body).hexdigest()}, 400)

        self.assertEqual("bad_request", refused["error"])
