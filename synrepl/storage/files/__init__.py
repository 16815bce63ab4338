"""Files by checksum: the store on disk, and the queue of missing files."""

from synrepl.storage.files.queue import FileQueue
from synrepl.storage.files.store import FileStore

__all__ = ["FileQueue", "FileStore"]
