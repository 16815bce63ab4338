"""Files by checksum: their bytes on the disk, and the queue of those that are still to come."""

from synrepl.storage.files.queue import FileQueue
from synrepl.storage.files.store import FileStore

__all__ = ["FileQueue", "FileStore"]
