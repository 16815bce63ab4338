"""Backups that have asked for a copy which is not known to be complete: nothing can be restored from them."""

import msgspec

from synrepl.base.history import BACKUP_PREFIX
from synrepl.replicas.relay.leases import Leases
from synrepl.storage.log import Log

__all__ = ["UnfinishedCopies", "is_backup"]


def is_backup(uuid: str) -> bool:
    """Whether this is the uuid of a backup."""
    return uuid.startswith(BACKUP_PREFIX)


class UnfinishedCopies:
    """The backups with a lease whose copy is unfinished, in a note of the log: their leases do not tell.

    A copy that was sent may not be on the backup's disk yet; once the backup subscribes, it is.
    """

    def __init__(self, log: Log, leases: Leases) -> None:
        self._log = log
        self._leases = leases
        self._uuids = set(msgspec.json.decode(log.notes.get("unfinished_copies", "[]"), type=list[str]))

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._uuids

    async def begin(self, uuid: str) -> None:
        """Note, on disk, that a reader with a lease copies; nothing for a replica. Raises `StorageError`."""
        if is_backup(uuid) and uuid not in self._uuids:
            self._uuids.add(uuid)
            await self._save()

    async def end(self, uuid: str) -> None:
        """Note that a reader has told up to where it has everything. Raises `StorageError`."""
        if uuid in self._uuids:
            self._uuids.discard(uuid)
            await self._save()

    async def _save(self) -> None:
        self._uuids = {uuid for uuid in self._uuids if self._leases[uuid] is not None}
        text = msgspec.json.encode(sorted(self._uuids)).decode() if self._uuids else None
        await self._log.note(unfinished_copies=text)
