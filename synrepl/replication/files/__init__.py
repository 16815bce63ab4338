"""Files that facts refer to by checksum: an index of their names, fetching, and integrity checks."""

from synrepl.ports.files import IFetchFile
from synrepl.replication.files.files import Files

__all__ = ["Files", "IFetchFile"]
