"""CopiedFiles: the files of a daemon, which a replica fetches from another daemon."""

from collections.abc import Sequence
from typing import Any

from synrepl.base.tasks import Tasks
from synrepl.daemon.other_daemons import IFileCopies
from synrepl.replicas.http.peer_clients import PeerHttp


class CopiedFiles:
    """The files of this daemon, and the URL from which they are fetched.

    Without `use` no files are copied: then none is missing, and none is waited for.
    """

    def __init__(self, http: PeerHttp, tasks: Tasks) -> None:
        self._http = http
        self._tasks = tasks
        self._files: IFileCopies | None = None
        self._url = ""

    def use(self, files: IFileCopies) -> None:
        """Copy these files."""
        self._files = files
        if self._url:
            self._tasks.start(self._fetch(), "choosing the source of files")

    async def fetch_from(self, url: str) -> None:
        """Fetch files from the daemon at this URL, and forward uploads to it; neither if it is empty."""
        if url != self._url:
            self._url = url
            await self._fetch()

    async def _fetch(self) -> None:
        url = self._url
        if self._files is not None:
            await self._files.fetch_from(self._http.client_for(url) if url else None, url)

    async def stop(self) -> None:
        """Fetch nothing any more."""
        if self._files is not None:
            await self._files.fetch_from(None, "")

    async def missing_upto(self, serial: int) -> Sequence[Any]:
        """Name and checksum of each missing file that was named up to this serial."""
        return [] if self._files is None else await self._files.missing_upto(serial)

    async def wait_for(self, sha256: str, seconds: float) -> bool:
        """Whether the file is here, or arrives in so many seconds, or files are not copied at all."""
        return self._files is None or await self._files.wait_for(sha256, seconds)
