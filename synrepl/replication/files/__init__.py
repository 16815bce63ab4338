"""Files that facts refer to by checksum: knowing which there are, fetching them, keeping them good."""

from synrepl.ports.files import IFetchFile
from synrepl.replication.files.files import Files

__all__ = ["Files", "IFetchFile"]
