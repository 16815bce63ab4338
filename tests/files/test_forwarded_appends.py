"""Appends at a replica that are answered when the bytes of the files that they name are here."""

from typing import Any

from synrepl.files.part import FilesPart
from tests.replicas.http.test_write_forwarder import HEX, RelayCase
from tests.replicas.served import forwarded


class FilesHereTests(RelayCase):
    """A replica with files."""

    def setUp(self) -> None:
        super().setUp()
        nothing: Any = None
        rooms = {"files": FilesPart(nothing, nothing, max_bytes=0)}
        self.site = self.make_site(hooks=forwarded(self.relaying(self.primary)), rooms=rooms)

    def test_files_are_waited_for_if_they_are_wanted(self) -> None:
        """The metadata alone is of no use to who downloads next."""
        rows = [["create", "a", HEX, 1], ["create", "b", "b" * 64, 1], ["delete", "c", None, None]]
        talks = [self.send("?files=here", "files", [[row] for row in rows]) for _ in range(2)]
        plain = self.send("", "files", [[rows[0]]])
        other = self.send("?files=here")
        self.feed()

        self.assertEqual([200, 200], [talk.answer().status for talk in (plain, other)])
        self.files[HEX][0].callback(True)
        self.files[HEX][1].callback(True)
        self.files["b" * 64][0].callback(True)
        self.assertEqual([True, False], [bool(talk.heard) for talk in talks])
        self.clock.advance(10)
        self.assertEqual({HEX, "b" * 64}, {*self.files})
        self.assertEqual([(200, ""), (504, "not_here_yet")], [self.told(talk) for talk in talks])
