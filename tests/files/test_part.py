"""What the status and the metrics of a daemon say of its files."""

from prometheus_client import CollectorRegistry, generate_latest

from synrepl.base.access import Access
from synrepl.files.files import MAX_BYTES
from synrepl.files.metrics import FilesMetrics
from synrepl.files.part import FilesPart
from synrepl.transports.http.http_client import HttpClient
from tests.files.setup import FilesCase


class PartTests(FilesCase):
    """The files of a daemon as the core sees them."""

    def setUp(self) -> None:
        super().setUp()
        self.registry = CollectorRegistry()

    def part(self, *, replica: bool = False) -> FilesPart:
        """That of a daemon that has started."""
        files = self.started(replica=replica)
        return FilesPart(files, FilesMetrics(self.registry), max_bytes=MAX_BYTES)

    def test_the_status_has_them_for_those_who_may_see_the_stream(self) -> None:
        """Others are told nothing of them."""
        part = self.part()
        limited = Access(name="a", rights=frozenset(), streams=frozenset({"receipts"}))

        self.assertEqual(0, part.status()["files"]["stored"])
        self.assertEqual({"files": None}, part.status(limited))

    def test_quarantined_files_are_a_warning(self) -> None:
        """Somebody should look at them."""
        part = self.part()
        self.assertEqual([], part.notices())
        part.files._store.quarantined = 2

        self.assertEqual(["2 files quarantined"], [one.text for one in part.notices()])
        part.collect()
        self.assertIn(b"synrepl_files_quarantined 2.0", generate_latest(self.registry))

    def test_the_source_may_be_told_before_the_start_and_after_the_stop(self) -> None:
        """A daemon knows its upstream before its parts have started."""
        files = self.made(replica=False)
        part = FilesPart(files, FilesMetrics(self.registry), max_bytes=MAX_BYTES)
        self.wait(part.fetch_from(HttpClient(self.clock), "http://a"))
        self.wait(part.start())

        self.assertTrue(files.is_replica)
        self.wait(part.fetch_from(None, ""))
        self.assertFalse(files.is_replica)
        self.wait(part.stop())
        self.wait(part.fetch_from(HttpClient(self.clock), "http://a"))
        self.assertFalse(files.is_replica)
