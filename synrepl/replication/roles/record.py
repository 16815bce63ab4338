"""A daemon's role, as stored on disk so that it survives a restart."""

import msgspec

from synrepl.ports.interfaces import ILog
from synrepl.replication.addresses import Address
from synrepl.replication.roles.interfaces import PRIMARY
from synrepl.replication.roles.verification import plausible_epoch

__all__ = ["PromotionRecord", "RoleRecord", "RoleStore"]


class RoleRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The role of a daemon, and the primary in its epoch.

    `told` are the addresses still to be notified of that, `knows` all known addresses.
    """

    role: str
    epoch: int
    uuid: str = ""
    address: str = ""
    told: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()


class PromotionRecord(msgspec.Struct, frozen=True):
    """An epoch that is about to begin, its time, and the role record to save then."""

    at_ms: int
    noted: RoleRecord


class RoleStore:
    """The role record in the notes of a log."""

    def __init__(self, log: ILog) -> None:
        self._log = log

    def load(self) -> RoleRecord | None:
        """The saved record; that of a promotion which a kill interrupted after its epoch began."""
        unfinished = self._unfinished_promotion()
        if unfinished is not None:
            return unfinished
        text = self._log.notes.get("role")
        return None if text is None else msgspec.json.decode(text, type=RoleRecord)

    async def save(self, record: RoleRecord) -> None:
        """Save this record. A promotion is finished by it."""
        await self._log.note(role=msgspec.json.encode(record).decode(), promoting=None)

    async def save_promotion(self, record: RoleRecord, at_ms: int) -> None:
        """Save that an epoch is about to begin at this time, with this record once it has begun."""
        promoting = msgspec.json.encode(PromotionRecord(at_ms, record)).decode()
        await self._log.note(promoting=promoting, handover=None)

    @property
    def seen_epoch(self) -> int:
        """The highest plausible epoch that this daemon has seen."""
        record = self.load()
        return max(self._log.epoch, 0 if record is None else plausible_epoch(record.epoch))

    @property
    def primary(self) -> Address | None:
        """The remembered address of another daemon that is primary; None if there is none."""
        record = self.load()
        known = record is not None and record.role != PRIMARY
        return (Address.parse(record.address) or None) if record is not None and known else None

    def _unfinished_promotion(self) -> RoleRecord | None:
        text = self._log.notes.get("promoting")
        if text is None or not self._log.epoch_starts:
            return None
        promotion, epoch_start = msgspec.json.decode(text, type=PromotionRecord), self._log.epoch_starts[-1]
        is_ours = (epoch_start.epoch, epoch_start.at_ms) == (promotion.noted.epoch, promotion.at_ms)
        return promotion.noted if is_ours and self._log.epoch == epoch_start.epoch else None
