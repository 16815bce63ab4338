"""What is asked of the store of files until the power is cut, and what must be there after it."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from synrepl.files.names import FileQueue, LogProgress, NamedFile
from synrepl.files.store import ChecksumMismatch, Damaged, FileStore
from synrepl.storage.position_files import FilePositions
from tests.crash.scenarios import Acknowledge, Acknowledged, Scenario
from tests.files.builders import NOW, checksum, open_verified
from tests.power.bits import Served
from tests.power.facts import Lost
from tests.processes.loading import drawn_seed

__all__ = ["LOADS", "SERVED", "FewFilesLoad", "FilesLoad", "ServedFiles"]

LOADS: Final = {"files": "tests.files.power_loads:FilesLoad"}
SERVED: Final = {"files": "tests.files.power_loads:ServedFiles"}


class FilesLoad(Scenario):
    """Files put, fetched in parts, damaged and put into quarantine, removed; the queue of files; saved
    positions.

    That a file was removed is no promise: the start after the cut finds it, and it is removed again.
    """

    STEPS = 250

    def run(self, acknowledge: Acknowledge) -> None:
        chance = random.Random(drawn_seed())
        store = self._store()
        queue = FileQueue(store.directory, has=store.has, seconds=store.seconds)
        queue.open()
        positions = FilePositions(self.position / "positions")
        positions.open()
        there: list[str] = []
        for step in range(self.STEPS):
            # Each sector is another one, and a kept journal can be compressed.
            data = "".join(f"{step} {line}\n" for line in range(chance.choice((1, 90, 600, 7_000)))).encode()
            kind = chance.choice(("put", "put", "fetch", "damage", "remove", "save", "name"))
            if kind in ("damage", "remove") and not there:
                kind = "put"
            match kind:
                case "put":
                    there.append(self._put(store, data))
                    acknowledge(("file", there[-1]))
                case "fetch":
                    self._fetch(store, data, chance.randint(0, len(data)))
                    there.append(checksum(data))
                    acknowledge(("file", there[-1]))
                    queue.settle([there[-1]], is_new=True)
                case "damage":
                    sha256 = there.pop(chance.randrange(len(there)))
                    acknowledge(("ended", sha256))
                    self._damage(store, sha256)
                case "remove":
                    sha256 = there.pop(chance.randrange(len(there)))
                    acknowledge(("ended", sha256))
                    store.remove(sha256)
                    queue.settle([sha256])
                case "save":
                    positions.save({"events": {"w1": step}})
                    acknowledge(("positions", step))
                case _:
                    self._name(queue, f"name {step}", data, step + 1)
        queue.close()
        positions.close()

    def _store(self) -> FileStore:
        self.position.mkdir(parents=True, exist_ok=True)
        return FileStore(self.position / "files", seconds=lambda: float(NOW))

    def _name(self, queue: FileQueue, name: str, data: bytes, serial: int) -> None:
        named = NamedFile(name=name, sha256=checksum(data), size=len(data), serial=serial)
        queue.note([named], LogProgress(serial, "digest"))

    @staticmethod
    def _put(store: FileStore, data: bytes) -> str:
        spool = store.receive()
        spool.append(data[: len(data) // 2])
        spool.append(data[len(data) // 2 :])
        spool.commit(checksum(data))
        return checksum(data)

    @staticmethod
    def _fetch(store: FileStore, data: bytes, until: int) -> None:
        for end in (until, len(data)):
            spool = store.resume(checksum(data), len(data))
            while not spool.rehash(1_000_000):
                pass
            spool.append(data[spool.length : end])
            spool.commit(checksum(data)) if end == len(data) else spool.close()
            if store.has(checksum(data)):
                return

    def _damage(self, store: FileStore, sha256: str) -> None:
        path = self.position / "files" / "sha256" / sha256[:2] / sha256[2:]
        with path.open("r+b") as file:
            file.write(b"damaged")
        file_or_none = store.open_unverified(sha256)
        assert file_or_none is not None
        try:
            while not file_or_none.verify(1_000_000):
                pass
        except Damaged:
            return
        # One byte that was this one already.
        file_or_none.close()

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        ended = {told for what, told in acknowledged if what == "ended"}
        kept = {told for what, told in acknowledged if what == "file"}
        store = self._store()
        store.sweep(lambda name: True)
        for sha256 in kept - ended:
            file = open_verified(store, sha256)
            if file is None:
                raise Lost(f"{sha256} is gone")
            file.close()
        self._check_others(store, kept | ended)
        saved = max((told for what, told in acknowledged if what == "positions"), default=0)
        positions: Any = FilePositions(self.position / "positions").load()
        if positions.get("events", {}).get("w1", 0) < saved:
            raise Lost(f"the positions are {positions}, and {saved} was saved")
        queue = FileQueue(store.directory, has=store.has, seconds=store.seconds)
        seen = queue.open().serial
        assert seen <= self.STEPS
        assert not list(self.position.glob("files/queue.db.bad*"))
        self._name(queue, "after", b"after", seen + 1)
        queue.close()
        self._go_on(store)

    @staticmethod
    def _check_others(store: FileStore, told: set[str]) -> None:
        """All else is whole, or refused as damaged."""
        found: list[str] = []
        while page := store.after(found[-1] if found else ""):
            found += page
        for sha256 in set(found) - told:
            file = open_verified(store, sha256)
            assert file is not None
            file.close()
        for sha256 in set(found) & told:
            try:
                file = open_verified(store, sha256)
            except Damaged:
                continue
            if file is not None:
                file.close()

    def _go_on(self, store: FileStore) -> None:
        """What was fetched in part is fetched; bytes that the disk has mixed up are refused, once."""
        data = b"after" * 1_000
        self._put(store, data)
        assert open_verified(store, checksum(data)) is not None
        for path in (self.position / "files" / "partial").glob("*"):
            spool = store.resume(path.name, 10**6)
            while not spool.rehash(1_000_000):
                pass
            try:
                spool.commit(path.name)
            except ChecksumMismatch:
                assert not path.exists()


class FewFilesLoad(FilesLoad):
    """A little of it, of which a journal is kept."""

    STEPS = 40


class ServedFiles(FilesLoad, Served):
    """The files by their checksums, the names of the queue, and the positions beside them.

    A queue that is damaged is made anew from the log, which is not flipped here, and from the disk.
    """

    LOG = "log.json"

    KINDS: ClassVar[Mapping[str, Sequence[str]]] = {
        "files": ["files/sha256/*/*"],
        "queue of files": ["files/queue.db", "files/queue.db-wal"],
        "positions": ["positions"],
    }

    def _name(self, queue: FileQueue, name: str, data: bytes, serial: int) -> None:
        super()._name(queue, name, data, serial)
        log = self.position / self.LOG
        facts = msgspec.json.decode(log.read_bytes()) if log.exists() else []
        log.write_bytes(msgspec.json.encode([*facts, (name, data.decode(), serial)]))

    def served(self) -> Any:
        store = self._store()
        found: list[str] = []
        while page := store.after(found[-1] if found else ""):
            found += page
        queue = FileQueue(store.directory, has=store.has, seconds=store.seconds)
        try:
            self._catch_up(queue, found)
            names = [queue.open(), queue.names_after("", 10**6), queue.missing(), queue.garbage(0, 10**6)]
            names += [queue.due(10**6), [queue.name_of(sha256) for sha256 in found]]
        finally:
            queue.close()
        positions = FilePositions(self.position / "positions").load()
        return [{sha256: self._read(store, sha256) for sha256 in found}, names, positions]

    def _catch_up(self, queue: FileQueue, stored: Sequence[str]) -> None:
        """Do what a start of the daemon does."""
        seen = queue.open()
        for name, text, serial in msgspec.json.decode((self.position / self.LOG).read_bytes()):
            if serial > seen.serial:
                super()._name(queue, name, text.encode(), serial)
        queue.settle(stored)
        # Those of which a queue that is older than the disk thinks that they are there.
        queue.settle([row.sha256 for row in queue.names_after("", 10**6) if row.sha256 is not None])
        queue.settle(queue.garbage(0, 10**6))

    @staticmethod
    def _read(store: FileStore, sha256: str) -> bytes:
        file = open_verified(store, sha256)
        assert file is not None
        try:
            return file.read(0, file.size)
        finally:
            file.close()

    def complaints(self) -> list[str]:
        return []
