"""From where a daemon fetches its files, whichever comes first: the files or the address."""

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from synrepl.base.tasks import Tasks
from synrepl.replicas.copied_files import CopiedFiles
from synrepl.replicas.http.peer_clients import PeerHttp
from tests.replicas.addresses import open_addresses

PARIS, ROME = "http://paris:9093", "http://rome:9093"


class Recorded:
    """`IFileCopies` that note where they are fetched from."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    async def fetch_from(self, http: Any, url: str) -> None:
        self.urls.append(url)

    async def missing_upto(self, serial: int) -> Sequence[Any]:
        return [("a.txt", "0" * 64)]

    async def wait_for(self, sha256: str, seconds: float) -> bool:
        return False


class CopiedFilesTests(SynchronousTestCase):
    """The room of files may be missing, and is made after that of replicas."""

    def setUp(self) -> None:
        self.files = Recorded()
        self.copied = CopiedFiles(PeerHttp(Clock(), open_addresses()), Tasks(Logger()))

    def wait(self, coroutine: Any) -> Any:
        """The result of a coroutine that ends at once."""
        return self.successResultOf(Deferred.fromCoroutine(coroutine))

    def test_a_daemon_is_told_once_from_where_to_fetch(self) -> None:
        """Each time would begin the comparison of all files anew."""
        self.copied.use(self.files)
        for url in (PARIS, PARIS, ROME, ""):
            self.wait(self.copied.fetch_from(url))

        self.assertEqual([PARIS, ROME, ""], self.files.urls)

    def test_files_that_come_after_the_address_are_fetched_from_there(self) -> None:
        """The role of a replica is known before its files are opened."""
        self.wait(self.copied.fetch_from(PARIS))
        self.copied.use(self.files)

        self.assertEqual([PARIS], self.files.urls)

    def test_without_files_none_is_missing(self) -> None:
        """A promotion would wait for them."""
        without = self.wait(self.copied.missing_upto(9)), self.wait(self.copied.wait_for("0" * 64, 1))
        self.copied.use(self.files)
        with_files = self.wait(self.copied.missing_upto(9)), self.wait(self.copied.wait_for("0" * 64, 1))

        self.assertEqual((([], True), ([("a.txt", "0" * 64)], False)), (without, with_files))
