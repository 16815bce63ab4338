"""What the store of files does while it may die at any effect."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from synrepl.files.names import FileQueue, LogProgress, NamedFile
from synrepl.files.store import FileStore
from synrepl.storage.position_files import FilePositions
from tests.crash.scenarios import Acknowledge, Acknowledged, Scenario
from tests.files.builders import NOW, open_verified


class FilesScenario(Scenario):
    """Files put, fetched in parts, deleted; the queue of files; a follower's positions."""

    PUT: Final = b"put" * 100
    FETCHED: Final = b"fetched" * 100
    DELETED: Final = b"deleted" * 100

    def _store(self) -> FileStore:
        self.position.mkdir(parents=True, exist_ok=True)
        store = FileStore(self.position / "files", seconds=lambda: float(NOW))
        store.sweep(lambda name: name == _sha256(self.FETCHED))
        return store

    @staticmethod
    def _queue(store: FileStore) -> FileQueue:
        return FileQueue(store.directory, has=store.has, seconds=store.seconds)

    def run(self, acknowledge: Acknowledge) -> None:
        store = self._store()
        queue = self._queue(store)
        positions = FilePositions(self.position / "positions")
        positions.open()
        queue.open()
        for data in (self.PUT, self.DELETED):
            spool = store.receive()
            spool.append(data[:50])
            spool.append(data[50:])
            spool.commit(_sha256(data))
            acknowledge(("file", _sha256(data)))
        positions.save({"events": {"w1": 1}})
        acknowledge(("positions", 1))
        named = [NamedFile(name="fetched", sha256=_sha256(self.FETCHED), size=len(self.FETCHED), serial=1)]
        queue.note(named, LogProgress(1, "digest"))
        self._fetch(store, until=300)
        self._fetch(store, until=len(self.FETCHED))
        acknowledge(("file", _sha256(self.FETCHED)))
        queue.settle([_sha256(self.FETCHED)], is_new=True)
        store.remove(_sha256(self.DELETED))
        acknowledge(("deleted", _sha256(self.DELETED)))
        positions.save({"events": {"w1": 2}})
        acknowledge(("positions", 2))
        queue.close()
        positions.close()

    def _fetch(self, store: FileStore, *, until: int) -> None:
        if store.has(_sha256(self.FETCHED)):
            return
        spool = store.resume(_sha256(self.FETCHED), len(self.FETCHED))
        while not spool.rehash(100):
            pass
        spool.append(self.FETCHED[spool.length : until])
        if until < len(self.FETCHED):
            spool.close()
        else:
            spool.commit(_sha256(self.FETCHED))

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        store = self._store()
        deleted = {told for what, told in acknowledged if what == "deleted"}
        saved = max((told for what, told in acknowledged if what == "positions"), default=0)
        for what, told in acknowledged:
            if what == "file" and told not in deleted and told != _sha256(self.DELETED):
                assert open_verified(store, told) is not None, f"{told} is gone"
        for sha256 in deleted:
            assert not store.has(sha256)
        for data in (self.PUT, self.FETCHED, self.DELETED):
            file = open_verified(store, _sha256(data))
            assert file is None or file.size == len(data)
        assert store.quarantined == 0
        found = FilePositions(self.position / "positions").load().get("events", {}).get("w1", 0)
        assert found >= saved
        incoming = self.position / "files" / "incoming"
        assert not incoming.exists() or not list(incoming.iterdir())

    def state(self) -> Any:
        # What a kill left beside its name goes at the next start, or with the next save.
        queue = self._queue(self._store())
        seen = queue.open().text
        wanted, _ = queue.due(10)
        queue.close()
        found = sorted(
            (str(path.relative_to(self.position)), path.stat().st_size if "sha256" in path.parts else 0)
            for path in self.position.rglob("*")
            if path.is_file()
        )
        return [found, seen, [one.name for one in wanted], (self.position / "positions").read_text()]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
