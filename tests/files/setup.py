"""A world for the tests of files: a log, an upstream, and time that stands still."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import LogEvent, Logger

from synrepl.errors import NotConnected
from synrepl.files.files import Files
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.facts import Fact
from synrepl.wire import jsontext
from synrepl.wire.filter import ALL, Filter
from tests.files.builders import DiskCase, checksum


class FakeLog:
    """As much of a `Log` as is needed to follow one stream; its head and its reads are itself."""

    def __init__(self) -> None:
        self.head = self.reads = self
        self.committed: list[Fact] = []
        self.read_count = 0
        self._subscribers: list[Callable[[Sequence[Fact]], None]] = []

    @property
    def serial(self) -> int:
        return self.committed[-1].serial if self.committed else 0

    def subscribe(self, subscriber: Callable[[Sequence[Fact]], None]) -> None:
        self._subscribers.append(subscriber)

    def commit(self, *facts: tuple[str, list[list[Any]]]) -> None:
        """A group of facts, each a stream and its rows."""
        told = []
        for stream, rows in facts:
            serial = self.serial + 1
            digest = checksum(f"{self.committed[-1].digest if self.committed else ''}{rows}".encode())
            told.append(Fact(serial, 1, stream, "w", serial - 1, serial, jsontext.dumps(rows), 0, digest))
            self.committed.append(told[-1])
        for subscriber in self._subscribers:
            subscriber(told)

    async def facts(
        self, *, after: int, upto: int, limit: int, filter: Filter = ALL
    ) -> tuple[list[Fact], int]:
        self.read_count += 1
        found = [fact for fact in self.committed if after < fact.serial <= upto]
        found = [fact for fact in found if filter.passes(fact.stream, fact.writer)]
        return (found[:limit], found[limit - 1].serial) if len(found) >= limit else (found, upto)

    def positions(self, stream: str) -> dict[str, int]:
        """The last token of each writer."""
        return {fact.writer: fact.token for fact in self.committed if fact.stream == stream}

    async def digest(self, serial: int) -> str | None:
        return next((fact.digest for fact in self.committed if fact.serial == serial), None)


def missing(files: Files) -> list[tuple[str, str]]:
    """Name and checksum of every missing file, oldest first."""
    return files._queue.missing()


class FakeUpstream:
    """Gives what is in `files`, in pieces of `piece` bytes, as far as it is let."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, int]] = []
        self.sent = 0
        self.running: Counter[str] = Counter()
        self.most = 0
        self.piece = 4
        self.cut_after: int | None = None
        self.held: dict[str, Deferred[None]] = {}

    def hold(self, sha256: str) -> None:
        """Let this file take its time, until `let_go`."""
        self.held[sha256] = Deferred()

    def let_go(self, sha256: str) -> None:
        """And now it comes."""
        self.held.pop(sha256).callback(None)

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        raise AssertionError("nobody brings anything here")

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        self.asked.append((sha256, offset))
        self.running[sha256] += 1
        self.most = max(self.most, self.running.total())
        try:
            if sha256 in self.held:
                await self.held[sha256]
            if sha256 not in self.files:
                raise NotConnected("upstream has no such file")
            data = self.files[sha256][offset:]
            for at in range(0, len(data), self.piece):
                if self.cut_after is not None and at >= self.cut_after:
                    raise NotConnected("the connection broke off")
                self.sent += self.piece
                await on_chunk(data[at : at + self.piece])
        finally:
            self.running[sha256] -= 1


class FilesCase(DiskCase):
    """Files over a disk, a log and an upstream; nothing runs until it is started."""

    def setUp(self) -> None:
        super().setUp()
        self.log = FakeLog()
        self.upstream = FakeUpstream()
        self.told: list[LogEvent] = []

    def made(self, *, replica: bool = True, **options: Any) -> Files:
        """The files of a daemon that is about to start, over what is there."""
        self.store = self.make_store()
        return Files(
            self.log,  # type: ignore[arg-type]
            self.store,
            ImmediateThread(),
            self.clock,
            fetch=self.upstream if replica else None,
            logger=Logger(observer=self.told.append),  # type: ignore[arg-type]
            **options,
        )

    def started(self, *, replica: bool = True, streams: Sequence[Any] = (), **options: Any) -> Files:
        """The files of a daemon that has just started, over what is there; it knew these `streams` before."""
        files = self.made(replica=replica, **options)
        for stream in streams:
            files.stream_added(stream)
        self.wait(files.start())
        self.addCleanup(lambda: self.wait(files.stop()))
        return files

    def upstream_has(self, data: bytes) -> str:
        """A file that can be fetched."""
        self.upstream.files[checksum(data)] = data
        return checksum(data)

    def say(self, *rows: tuple[str, str | None]) -> None:
        """One fact of files."""
        self.log.commit(("files", [self.row(*row) for row in rows]))

    @staticmethod
    def row(name: str, sha256: str | None) -> list[Any]:
        """A row that says what a name stands for."""
        return ["delete", name, None, None] if sha256 is None else ["create", name, sha256, 99]

    def wait(self, awaitable: Any) -> Any:
        """The result of what is done already."""
        return self.successResultOf(ensureDeferred(awaitable))

    def served(self, files: Files, sha256: str) -> bytes | None:
        """What somebody who asks for it gets."""
        file = self.wait(files.open(sha256))
        if file is None:
            return None
        data: bytes = self.wait(files.read(file, 0, file.size))
        files.release(file)
        return data

    def texts(self) -> list[str]:
        """What the operator was told."""
        return [str(event.get("log_format")) for event in self.told]
