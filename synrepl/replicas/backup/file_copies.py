"""The files of a backup: fetched over HTTP before the facts that refer to them are recorded."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from twisted.internet.defer import DeferredLock

from synrepl.base.interfaces import IClock, IThread
from synrepl.base.time import sleep
from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import HttpRequest
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.examination import Examiner
from synrepl.storage.private_files import create_private, map_path_errors, sync_directory
from synrepl.streams.catalog import FILES
from synrepl.streams.facts import Fact
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.response_body import BodyChunks

SILENCE_SECONDS: Final = 60.0
"""How long a download may bring nothing."""

ASK_SECONDS: Final = 300.0
"""After so many seconds a backup that goes on asks for missing files again."""

NO_ADDRESS: Final = "the daemon told no HTTP address that may be asked; use --url"

GONE: Final = "no_such_file"
"""The code of a daemon that will not have a file again: its last name is gone."""

ABSENT: Final = frozenset({"file_not_here", "not_found", "filtered"})
"""The codes of a daemon that does not have a file, which a name refers to: nobody uploaded it, it is damaged,
or the daemon stores no files. The facts are backed up all the same."""

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

    `missing` has the checksum of each file that could not be fetched, and why. They are noted in the folder,
    for later runs.
    """

    def __init__(
        self,
        folder: BackupFolder,
        thread: IThread,
        clock: IClock,
        client: Callable[[], HttpClient | None],
    ) -> None:
        self.missing: dict[str, str] = {}
        self._folder = folder
        self._thread = thread
        self._clock = clock
        self._client = client
        self._lock = DeferredLock()
        """Held while a file is fetched: it is asked for as a fact comes, and again beside that."""
        self._stored: set[str] = set()
        """The checksums that need not be looked for again."""
        self._answered: set[str] = set()
        """The checksums of missing files of which the upstream said that it does not have them."""

    @property
    def not_asked(self) -> int:
        """How many of the missing files the upstream could not be asked for."""
        return len(self.missing.keys() - self._answered)

    async def open(self) -> None:
        """Find which files earlier runs could not fetch."""
        self.missing = dict.fromkeys(await self._thread.run(self._find_missing), "not asked for yet")

    def _find_missing(self) -> list[str]:
        folder = self._folder
        if not folder.missing_path.exists():
            # Made by a release that took no note, or new.
            folder.begin_missing(Examiner(folder).examine(with_files=False).missing_checksums)
        return folder.missing_files()

    async def fetch(self, facts: Sequence[Fact]) -> None:
        """Store the files that these facts refer to. Raises `NotConnected` if one cannot be fetched now.

        One that the upstream does not have is noted as missing.
        """
        wanted = dict.fromkeys(one for one in references(facts) if one not in self._stored)
        if absent := [checksum for checksum in wanted if not await self._fetch(checksum)]:
            await self._thread.run(lambda: self._folder.note_missing(absent))

    async def ask_again(self) -> None:
        """Fetch the files that are missing, as far as the upstream has them now."""
        for checksum in list(self.missing):
            try:
                await self._fetch(checksum)
            except ReplicationError as error:
                self.missing[checksum] = str(error)
                if isinstance(error, NotConnected):
                    return

    async def keep_asking(self) -> None:
        """Ask again every `ASK_SECONDS`, for ever."""
        while True:
            await sleep(self._clock, ASK_SECONDS)
            await self.ask_again()

    async def _fetch(self, checksum: str) -> bool:
        """Store a file. Returns whether it is not missing, as it is stored or will not be there again."""
        async with self._lock:
            path = self._folder.file_path(checksum)
            self._answered.discard(checksum)
            why: str | None = ""
            if not await self._thread.run(path.exists):
                client = self._client()
                if client is None:
                    self.missing[checksum] = NO_ADDRESS
                    return False
                why = await self._download(client, checksum, path)
            if why:
                self.missing[checksum] = why
                self._answered.add(checksum)
                return False
            if why is not None:
                self._stored.add(checksum)
            if self.missing.pop(checksum, None) is not None:
                await self._thread.run(lambda: self._folder.forget_missing(checksum))
            return True

    async def _download(self, client: HttpClient, checksum: str, path: Path) -> str | None:
        """Store a file. Returns why there is none; empty if it is stored now, None if it is gone for good."""
        request = HttpRequest("GET", f"/v1/files/sha256/{checksum}")
        try:
            response = await client.open(request)
        except HttpError as error:
            if error.code == GONE:
                return None
            if error.code in ABSENT:
                return str(error)
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
                return ""
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
