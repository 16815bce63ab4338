"""What the tests of files are told with."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from synrepl.files.store import FileStore, StoredFile
from synrepl.testing.heap_clock import HeapClock

NOW = 1_700_000_000
"""When every test begins, in seconds."""


def checksum(data: bytes) -> str:
    """The name of these bytes."""
    return hashlib.sha256(data).hexdigest()


def open_verified(store: FileStore, sha256: str) -> StoredFile | None:
    """Verify a file at once, and open it; None if it is not stored."""
    file = store.open(sha256)
    try:
        while file is not None and not file.verify(64 * 1024 * 1024):
            pass
    except BaseException:
        assert file is not None
        file.close()
        raise
    return file


class DiskCase(SynchronousTestCase):
    """A test with a directory, a fake clock and a store."""

    def setUp(self) -> None:
        self.clock = HeapClock()
        self.clock.advance(NOW)
        made = tempfile.mkdtemp(prefix="synrepl-files-")
        self.addCleanup(shutil.rmtree, made, ignore_errors=True)
        self.directory = Path(made) / "files"
        self.store = self.make_store()

    def make_store(self) -> FileStore:
        """A store in the directory, as after a restart."""
        return FileStore(self.directory, seconds=self.clock.seconds)

    def kept(self, data: bytes) -> str:
        """Have these bytes in the store."""
        spool = self.store.receive()
        spool.append(data)
        spool.commit(checksum(data))
        return checksum(data)

    def path(self, sha256: str) -> Path:
        """Where a file is."""
        return self.directory / "sha256" / sha256[:2] / sha256[2:]

    def flip(self, sha256: str) -> None:
        """Change a bit of a file, as a disk does, after a while."""
        path = self.path(sha256)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        self.clock.advance(61)

    def everything(self) -> list[str]:
        """Every file under the directory, by its path."""
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.directory)) for path in found)
