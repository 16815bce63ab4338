"""A site with files behind it."""

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.errors import NotConnected
from synrepl.files.fetching import IFetchFile
from synrepl.files.files import MAX_BYTES, Files
from synrepl.files.metrics import FilesMetrics
from synrepl.files.part import FilesPart
from synrepl.files.store import FileStore
from synrepl.storage.threads import ImmediateThread
from tests.files.builders import checksum
from tests.http.builders import SiteCase

DATA = b"0123456789" * 100
SHA = checksum(DATA)
PLACE = f"/v1/files/sha256/{SHA}"


class Upstream:
    """Gives `data` once `comes` has fired; None: there is no such file."""

    def __init__(self, data: bytes | None = DATA) -> None:
        self.data = data
        self.comes: Deferred[None] = Deferred()
        self.sent: list[tuple[str, bytes, int]] = []
        self.refuses: list[Exception] = []

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        if self.refuses:
            raise self.refuses.pop(0)
        self.sent.append((sha256, await read(0, size), hops))

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        await self.comes
        if self.data is None:
            raise NotConnected("there is no such file")
        await on_chunk(self.data[offset:])


class FilesSiteCase(SiteCase):
    """A primary that keeps files; `replica` makes a replica of it."""

    def setUp(self) -> None:
        super().setUp()
        made = tempfile.mkdtemp(prefix="synrepl-files-")
        self.addCleanup(shutil.rmtree, made, ignore_errors=True)
        self.directory = Path(made) / "files"
        self.files = self.make_files(None)
        self.site = self.make_site()

    def make_site(self, *, max_file_bytes: int = MAX_BYTES, **options: Any) -> Any:
        """A site with files behind it, once there are some, unless its `rooms` are given."""
        if hasattr(self, "files") and "rooms" not in options:
            metrics = FilesMetrics(CollectorRegistry())
            options["rooms"] = {"files": FilesPart(self.files, metrics, max_bytes=max_file_bytes)}
        return super().make_site(**options)

    def make_files(self, fetch: IFetchFile | None, **options: Any) -> Files:
        """Files over the directory, which nobody else has open."""
        self.store = FileStore(self.directory, seconds=self.clock.seconds)
        files = Files(
            self.log,
            self.store,
            ImmediateThread(),
            self.clock,
            fetch=fetch,
            logger=Logger(observer=lambda event: None),  # type: ignore[arg-type]
            **options,
        )
        self.wait(files.start())
        self.addCleanup(lambda: self.wait(files.stop()))
        return files

    def replica(self, upstream: IFetchFile | None, **options: Any) -> None:
        """From now on the site is that of a replica."""
        self.wait(self.files.stop())
        self.files = self.make_files(upstream, **options)
        self.site = self.make_site()

    def put(self, data: bytes, sha256: str | None = None, *headers: str) -> Any:
        """Upload this."""
        return self.ask("PUT", f"/v1/files/sha256/{sha256 or checksum(data)}", data, *headers)

    def name(self, name: str, sha256: str | None, size: int = len(DATA)) -> None:
        """Have a fact in the log that names a file."""
        gone = sha256 is None
        row = ["delete" if gone else "create", name, sha256, None if gone else size]
        self.assertEqual(200, self.post("files", [row]).status)

    def everything(self) -> list[str]:
        """Every file that is there but the queue, by its path."""
        found = (path for path in self.directory.rglob("*") if path.is_file() and "queue.db" not in path.name)
        return sorted(str(path.relative_to(self.directory)) for path in found)
