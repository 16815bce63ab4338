"""Bugs of files."""

from tests.files.builders import checksum
from tests.files.setup import FilesCase, missing


class PoisonTests(FilesCase):
    """A replica that fetches its files one at a time."""

    def test_a_file_with_wrong_bytes_does_not_hold_up_others(self) -> None:
        """Case 31, devpi #447 and #489: one file that could not be fetched stopped a replica permanently.

        Here: all others arrive, wrong bytes are never kept, and status names the file. When the file is right
        again, it arrives too.
        """
        good = [self.upstream_has(b"%d" % number) for number in range(20)]
        poison = checksum(b"right")
        self.upstream.files[poison] = b"wrong"
        files = self.started(workers=1)

        self.say(("bad", poison), *((sha256, sha256) for sha256 in good))

        self.assertEqual([("bad", poison)], missing(files))
        self.assertFalse(self.store.has(poison))
        self.clock.advance(2)
        self.clock.advance(2)
        self.assertEqual(["bad"], [one["name"] for one in files.status()["failing"]])

        self.upstream.files[poison] = b"right"
        self.clock.advance(700)
        self.clock.advance(2)

        self.assertEqual([], missing(files))
        self.assertEqual(b"right", self.served(files, poison))
