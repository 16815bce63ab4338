"""What the room of files runs in a daemon."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from synrepl.base.access import LOCAL, Access
from synrepl.base.problems import Notice, Problem
from synrepl.base.response_errors import ErrorResponse, OwnResponse
from synrepl.daemon.parts import DaemonParts, Part
from synrepl.errors import ReplicationError, StorageError
from synrepl.files.files import Files
from synrepl.files.metrics import FilesMetrics
from synrepl.files.settings import FilesSettings
from synrepl.files.store import FileStore
from synrepl.html.humanize import counted
from synrepl.storage.threads import ReactorThread
from synrepl.streams.catalog import FILES
from synrepl.streams.stream import Stream
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST

if TYPE_CHECKING:
    from synrepl.files.http_files import HttpFiles
    from synrepl.transports.http.http_client import HttpClient


class StagedTooLarge(OwnResponse, StorageError):
    """A staged file is too large to be read at once."""

    def __init__(self, size: int, most: int) -> None:
        why = f"the staged file is too large: {size} bytes; the limit is {most}"
        super().__init__(op="read a staged file", why=why)

    def response(self) -> ErrorResponse:
        return ErrorResponse("too_large", self.why)


class FilesPart(Part):
    """The files of a daemon, of at most `max_bytes` each.

    It fetches them from a daemon by `fetch_from`, which may be called before the start and after the stop.
    """

    def __init__(self, files: Files, metrics: FilesMetrics, *, max_bytes: int) -> None:
        self.files = files
        self.max_bytes = max_bytes
        self._metrics = metrics
        self._source: HttpFiles | None = None
        self._is_running = False

    async def start(self) -> None:
        await self.files.start()
        self._is_running = True
        if self._source is not None:
            await self.files.set_source(self._source)

    async def stop(self) -> None:
        self._is_running = False
        await self.files.stop()

    # What a replica needs (`IFileCopies`).

    async def fetch_from(self, http: "HttpClient | None", url: str) -> None:
        """Fetch files from the daemon at this URL, and forward uploads to it (None: neither)."""
        self._source = None
        if http is not None:
            from synrepl.files.http_files import HttpFiles  # late: a primary fetches nothing

            self._source = HttpFiles(http, url)
        if self._is_running:
            await self.files.set_source(self._source)

    async def missing_upto(self, serial: int) -> Sequence[tuple[str, str]]:
        """Name and checksum of each missing file that was named up to this serial."""
        return await self.files.missing_upto(serial)

    async def wait_for(self, sha256: str, seconds: float) -> bool:
        """Whether the file is here, or arrives in so many seconds."""
        return await self.files.wait_for(sha256, seconds)

    # What the status shows.

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        return {"files": self.files.status(access.sees) if access.sees(FILES.name) else None}

    def problems(self) -> Sequence[Problem]:
        return self.files.problems()

    def notices(self, access: Access = LOCAL) -> Sequence[Notice]:
        quarantined = self.files.status()["quarantined"] if access.sees(FILES.name) else 0
        return [Notice(f"{counted(quarantined, 'file')} quarantined")] if quarantined else []

    def collect(self) -> None:
        self._metrics.collect(self.files.status())

    # What appends need.

    def stored_bytes(self) -> "FilesPart":
        return self

    def named_by(self, stream: Stream[Any], facts: Collection[bytes]) -> frozenset[str]:
        """Return the checksums of the files to which these rows refer; those that delete a name: to none."""
        if stream.name != FILES.name and not stream.files:
            return frozenset()
        rows: list[Any] = [row for fact in facts for row in stream.decode_many(jsontext.split(fact), NEWEST)]
        if stream.name == FILES.name:
            return frozenset(row.sha256 for row in rows if row.sha256 is not None)
        files = (getattr(row, column) for row in rows for column in stream.files)
        return frozenset(file["sha256"] for file in files if file is not None)

    async def read_stored(self, sha256: str, most: int) -> bytes | None:
        """Read a whole file; None if it is not here. Raises `StagedTooLarge`, or another `StorageError`."""
        file = await self.files.open(sha256)
        if file is None:
            return None
        try:
            if file.size > most:
                raise StagedTooLarge(file.size, most)
            return await self.files.read(file, 0, file.size)
        finally:
            self.files.release(file)


def make_part(daemon: DaemonParts) -> FilesPart:
    """Make the files of a daemon, which keep what its streams name, and follow a replica's upstream."""
    settings, reactor, log = daemon.settings, daemon.reactor, daemon.log
    assert isinstance(settings, FilesSettings)
    others = daemon.other_daemons
    refusal: Callable[[], ReplicationError | None] = (lambda: None) if others is None else others.file_refusal
    files = Files(
        log,
        FileStore(settings.files_path, seconds=reactor.seconds),
        ReactorThread(reactor, "files"),
        reactor,
        rule=settings.fetch_files,
        max_bytes=settings.max_file_bytes,
        refusal=refusal,
        is_primary=lambda: daemon.role.is_primary,
        find_stream=daemon.table.get,
        logger=Logger(namespace="synrepl.files"),
    )
    for stream in daemon.table:
        files.stream_added(stream)
    daemon.declared.subscribers.append(files.stream_added)
    log.copies.on_replaced(files.rebuild)
    part = FilesPart(files, FilesMetrics(daemon.registry), max_bytes=settings.max_file_bytes)
    if others is not None:
        others.use_files(part)
    return part
