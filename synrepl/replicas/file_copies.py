"""What a replica and the files of its daemon need of each other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from synrepl.errors import ReplicationError
    from synrepl.transports.http.http_client import HttpClient


class IFileCopies(Protocol):
    """The files of this daemon, which a replica copies too."""

    async def fetch_from(self, http: "HttpClient | None", url: str) -> None:
        """Fetch files from the daemon at this URL, and forward uploads to it (None: neither)."""

    async def missing_upto(self, serial: int) -> Sequence[Any]:
        """Name and checksum of each missing file that was named up to this serial."""

    async def wait_for(self, sha256: str, seconds: float) -> bool:
        """Whether the file is here, or arrives in so many seconds."""


class ICopiesFiles(Protocol):
    """A daemon that may be a replica, and then copies files."""

    def use_files(self, files: IFileCopies) -> None:
        """Copy these files too."""

    def file_refusal(self) -> "ReplicationError | None":
        """Return the error with which uploads are refused now; None if they are taken."""
