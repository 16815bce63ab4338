"""The database of the queue of files: one process has it, and nobody else can read it."""

import os
import stat

from synrepl.errors import StorageError
from synrepl.files.names import QueueDatabase
from tests.storage import test_database_file as logs


class QueueTests(logs.FileCase):
    """Beside a log."""

    def test_the_queue_of_files_is_locked_likewise(self) -> None:
        """Also when a damaged one was put aside, and a new one took its place."""
        path = self.directory() / "queue.db"
        path.write_bytes(b"nonsense " * 100)
        tables = QueueDatabase(path)
        self.addCleanup(tables.close)
        with tables.writing("test") as database:
            database.execute("INSERT INTO notes VALUES ('a', 'b')")
        path.with_name("queue.db.lock").unlink()

        second = QueueDatabase(path)
        with self.assertRaises(StorageError) as caught:
            second.exists()

        self.assertIn(f"this process ({os.getpid()}) has opened {path}", str(caught.exception))

    def test_the_queue_of_files_is_private(self) -> None:
        """And the directory that is made for it."""
        tables = QueueDatabase(self.path.parent / "files" / "queue.db")
        self.addCleanup(tables.close)
        with tables.writing("test") as database:
            database.execute("INSERT INTO notes VALUES ('a', 'b')")

        self.assertEqual({"0600"}, set(self.modes(self.path.parent).values()))
        self.assertEqual(0o700, stat.S_IMODE((self.path.parent / "files").stat().st_mode))
