"""The files of a daemon that has none yet: the part of the room until the first one.

Many daemons never have a file. Then no folder is made, no thread runs, and what stores, names and fetches
files is not imported.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.access import LOCAL, Access
from synrepl.base.gate import Gate
from synrepl.base.problems import Problem
from synrepl.base.tasks import Tasks
from synrepl.daemon.parts import DaemonParts, Part
from synrepl.errors import ReplicationError, StorageError
from synrepl.files.metrics import FilesMetrics
from synrepl.files.references import referred_files
from synrepl.files.settings import FilesSettings
from synrepl.streams.catalog import FILES
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream

if TYPE_CHECKING:
    from synrepl.files.files import Files
    from synrepl.files.part import FilesPart
    from synrepl.replicas.file_copies import ICopiesFiles
    from synrepl.transports.http.http_client import HttpClient

NOTHING: Final[Mapping[str, Any]] = {
    "rule": "none",
    "stored": 0,
    "stored_bytes": 0,
    "wanted": 0,
    "in_flight": 0,
    "failing": [],
    "oldest_seconds": None,
    "missing": 0,
    "quarantined": 0,
}
"""The status of no files (`Files.status`)."""


class LateFiles(Part):
    """The files of a daemon, opened at its start if the settings, its folder or its log have any.

    Otherwise they are opened by the first fact that refers to a file, request for one, or source of copies.
    """

    _logger = Logger()

    def __init__(self, daemon: DaemonParts, settings: FilesSettings) -> None:
        self.max_bytes = settings.max_file_bytes
        self._daemon = daemon
        self._settings = settings
        self._metrics = FilesMetrics(daemon.registry)
        self._tasks = Tasks(self._logger, "files")
        self._part: FilesPart | None = None
        self._opening: Deferred[None] | None = None
        self._is_ready = Gate()
        """Open unless the files are being opened."""
        self._why: ReplicationError | None = None
        """Why the files could not be opened."""
        self._is_running = False
        self._is_needed = False
        self._replicas = cast("ICopiesFiles | None", daemon.rooms.get("replicas"))
        for stream in daemon.table:
            self._stream_added(stream)
        daemon.declared.subscribers.append(self._stream_added)
        daemon.log.subscribe(self._on_committed)
        daemon.log.copies.on_replaced(self._log_replaced)
        if self._replicas is not None:
            self._replicas.use_files(self)

    async def start(self) -> None:
        """Open the files if there are any. Raises `StorageError`."""
        self._is_running = True
        settings, log = self._settings, self._daemon.log
        if (
            self._is_needed
            or settings.files is not None
            or settings.files_path.exists()
            or log.positions(FILES.name)
        ):
            await self.opened()

    async def stop(self) -> None:
        self._is_running = False
        if self._opening is not None:
            await self._opening
        self._tasks.stop()
        if self._part is not None:
            await self._part.stop()

    async def opened(self) -> "Files":
        """Return the files; the first call opens them. Raises `StorageError`."""
        return (await self._opened_part()).files

    async def _opened_part(self) -> "FilesPart":
        if self._part is None:
            if self._is_ready.is_open and self._is_running:
                self._is_ready.close()
                # A task: whoever waits for it may go.
                self._opening = self._tasks.start(self._open(), "opening the files")
            await self._is_ready.wait_open()
        if self._part is None:
            raise self._why or StorageError(
                op="open the files", why="this daemon is starting or stopping", retryable=True
            )
        return self._part

    async def _open(self) -> None:
        from synrepl.files.part import make_part

        part = None
        try:
            part = make_part(
                self._daemon,
                self._settings,
                self._metrics,
                refusal=(lambda: None) if self._replicas is None else self._replicas.file_refusal,
            )
            await part.start()
            self._part, self._why = part, None
        except ReplicationError as error:
            self._why = error
            if part is not None:
                await part.stop()
        finally:
            self._is_ready.open()

    # -- what shows that there are files -------------------------------------------------------------------

    def _stream_added(self, stream: Stream[Any]) -> None:
        if stream.files:
            self._needed()

    def _on_committed(self, facts: Sequence[Fact]) -> None:
        if self._part is None and any(fact.stream == FILES.name for fact in facts):
            self._needed()

    def _log_replaced(self) -> None:
        if self._part is None and self._daemon.log.positions(FILES.name):
            self._needed()

    def _needed(self) -> None:
        self._is_needed = True
        if self._is_running and self._part is None:
            self._tasks.start(self._opened_part(), "opening the files")

    # -- what a replica needs (`synrepl.replicas.file_copies.IFileCopies`) ---------------------------------

    async def fetch_from(self, http: "HttpClient | None", url: str) -> None:
        """Fetch files from the daemon at this URL, and forward uploads to it (None: neither)."""
        if self._part is not None or (http is not None and self._is_running):
            await (await self._opened_part()).fetch_from(http, url)

    async def missing_upto(self, serial: int) -> Sequence[tuple[str, str]]:
        """Name and checksum of each missing file that was named up to this serial."""
        return await (await self._opened_part()).missing_upto(serial) if self._is_needed else []

    async def wait_for(self, sha256: str, seconds: float) -> bool:
        """Whether the file is here, or arrives in so many seconds."""
        return await (await self._opened_part()).wait_for(sha256, seconds)

    # -- what the status shows -----------------------------------------------------------------------------

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        if self._part is not None:
            return self._part.status(access)
        return {"files": dict(NOTHING) if access.sees(FILES.name) else None}

    def problems(self) -> Sequence[Problem]:
        if self._part is not None:
            return self._part.problems()
        return [] if self._why is None else [Problem(f"files: {self._why}", self._daemon.reactor.seconds())]

    def warnings(self, access: Access = LOCAL) -> Sequence[str]:
        return [] if self._part is None else self._part.warnings(access)

    def collect(self) -> None:
        self._metrics.collect(NOTHING if self._part is None else self._part.files.status())

    # -- what appends need ---------------------------------------------------------------------------------

    def stored_bytes(self) -> "LateFiles":
        return self

    def named_by(self, stream: Stream[Any], facts: Collection[bytes]) -> frozenset[str]:
        """Return the checksums of the files to which these rows refer."""
        return referred_files(stream, facts)

    async def read_stored(self, sha256: str, most: int) -> bytes | None:
        """Read a whole file; None if it is not here. Raises a `StorageError`, also if it is too large."""
        return await (await self._opened_part()).read_stored(sha256, most)
