"""Files that facts refer to by checksum: store, index of names, fetching, and integrity checks."""

from synrepl.files.fetcher import IFetchFile
from synrepl.files.files import Files
from synrepl.files.queue import FileQueue
from synrepl.files.store import FileStore

__all__ = ["FileQueue", "FileStore", "Files", "IFetchFile"]
