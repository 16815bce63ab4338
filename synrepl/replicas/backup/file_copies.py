"""The files of a backup: fetched over HTTP before the facts that refer to them are recorded."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from synrepl.base.interfaces import IClock, IThread
from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import HttpRequest
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.storage.private_files import create_private, map_path_errors, sync_directory
from synrepl.streams.catalog import FILES
from synrepl.streams.facts import Fact
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.response_body import BodyChunks

SILENCE_SECONDS: Final = 60.0
"""How long a download may bring nothing."""

GONE: Final = frozenset({"no_such_file", "not_found", "filtered"})
"""The codes of a daemon that will not have a file: its last name is gone, or it stores none."""

_named: Final = re.compile(rb'"([0-9a-f]{64})"')
_referred: Final = re.compile(rb'"sha256":"([0-9a-f]{64})"')


def references(facts: Iterable[Fact]) -> Iterable[str]:
    """Yield the checksums of the files that these facts refer to.

    They are those of rows of ``files``, and of columns of the type ``file`` in other streams.
    """
    for fact in facts:
        pattern = _named if fact.stream == FILES.name else _referred
        if b'"sha256":"' in fact.rows or fact.stream == FILES.name:
            yield from (found.decode() for found in pattern.findall(fact.rows))


class FileCopies:
    """Fetches files into the folder of a backup. `client` returns a client of the upstream; None without one.

    `missing` counts the files that could not be asked for, as the upstream told no HTTP address.
    """

    def __init__(
        self,
        folder: BackupFolder,
        thread: IThread,
        clock: IClock,
        client: Callable[[], HttpClient | None],
    ) -> None:
        self.missing = 0
        self._folder = folder
        self._thread = thread
        self._clock = clock
        self._client = client
        self._settled: set[str] = set()
        """The checksums that need not be looked for again: stored, or gone at the upstream."""

    async def fetch(self, facts: Sequence[Fact]) -> None:
        """Store the files that these facts refer to. Raises `NotConnected` if one cannot be fetched now."""
        for checksum in references(facts):
            if checksum in self._settled:
                continue
            path = self._folder.file_path(checksum)
            if not await self._thread.run(path.exists):
                client = self._client()
                if client is None:
                    self.missing += 1
                else:
                    await self._download(client, checksum, path)
            self._settled.add(checksum)

    async def _download(self, client: HttpClient, checksum: str, path: Path) -> None:
        request = HttpRequest("GET", f"/v1/files/sha256/{checksum}")
        try:
            response = await client.open(request)
        except HttpError as error:
            if error.code in GONE:
                return
            raise NotConnected(f"cannot fetch a file: {error}") from error
        chunks = BodyChunks.of(
            response, request.url(client.base_url), clock=self._clock, silence=SILENCE_SECONDS
        )
        fresh = path.with_name(f".{checksum}.new")
        hashed = sha256()
        run = self._thread.run
        with map_path_errors("store a file", fresh):
            file: BinaryIO = await run(lambda: create_private(fresh))
            try:
                while data := b"".join(await chunks.next()):
                    hashed.update(data)
                    await run(lambda data=data: file.write(data))  # type: ignore[misc]
                chunks.check_complete()
                if hashed.hexdigest() != checksum:
                    why = f"the upstream sent other bytes than those of the file {checksum}"
                    raise RemoteProtocolError(why)
                await run(lambda: _finish(file, fresh, path))
            except BaseException:
                chunks.stop()
                raise
            finally:
                file.close()
                fresh.unlink(missing_ok=True)


def _finish(file: BinaryIO, fresh: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
