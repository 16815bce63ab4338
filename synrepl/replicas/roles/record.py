"""What a daemon remembers of roles: its own, stored on disk, and the daemons that it knows."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from synrepl.replicas.roles.messages import plausible_epoch
from synrepl.replicas.roles.role_states import Role
from synrepl.replication.addresses import Address
from synrepl.storage.log import Log

MAX_KNOWN: Final = 20


class RoleRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename={"unnotified": "told"}):
    """The role of a daemon. `uuid` and `address` are those of the primary in `epoch`, as far as known.

    `unnotified` are the addresses still to be notified of that primary, `knows` those that are remembered.
    On disk the former have the name that earlier releases gave them.
    """

    role: str
    epoch: int
    uuid: str = ""
    address: str = ""
    unnotified: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()


class PromotionRecord(msgspec.Struct, frozen=True):
    """A promotion about to begin an epoch at `at_ms`, and the role record to save then, with that epoch."""

    at_ms: int
    noted: RoleRecord


@dataclass(eq=False, repr=False)
class RoleStore:
    """The role record in the notes of a log, and the known daemons.

    Addresses of known daemons are in the role record; `local` returns others, such as those of leases.
    `own` returns this daemon's address.
    """

    log: Log
    _: KW_ONLY
    own: Callable[[], Address]
    local: Callable[[], Sequence[Address]]

    def __post_init__(self) -> None:
        self._saving: RoleRecord | None = None

    def load(self) -> RoleRecord | None:
        """The record of a promotion that a kill cut off after its epoch began, else the saved one or None."""
        if self._saving is not None:
            # Whoever changes the record must not begin with the one before.
            return self._saving
        unfinished = self._unfinished_promotion()
        if unfinished is not None:
            return unfinished
        text = self.log.notes.get("role")
        return None if text is None else msgspec.json.decode(text, type=RoleRecord)

    async def save(self, record: RoleRecord) -> None:
        """Save this record, and delete that of `save_promotion`. `load` returns it from now on."""
        self._saving = record
        try:
            await self.log.note(role=msgspec.json.encode(record).decode(), promoting=None)
        finally:
            if self._saving is record:
                self._saving = None

    async def save_unnotified(self, addresses: Sequence[Address]) -> None:
        """Save the addresses still to be notified of the primary in the record."""
        record = self.load() or RoleRecord(Role.PRIMARY, self.log.head.epoch, self.log.uuid)
        await self.save(msgspec.structs.replace(record, unnotified=tuple(map(str, addresses))))

    async def save_promotion(self, record: RoleRecord, at_ms: int) -> None:
        """Save that an epoch is about to begin at this time, with this record once it has begun."""
        promoting = msgspec.json.encode(PromotionRecord(at_ms, record)).decode()
        await self.log.note(promoting=promoting, handover=None)

    @property
    def seen_epoch(self) -> int:
        """The highest plausible epoch that this daemon has seen."""
        record = self.load()
        return max(self.log.head.epoch, 0 if record is None else plausible_epoch(record.epoch))

    @property
    def primary(self) -> Address | None:
        """The remembered address of another daemon that is primary; None if none is known."""
        record = self.load()
        known = record is not None and record.role != Role.PRIMARY
        return (Address.parse(record.address) or None) if record is not None and known else None

    def _unfinished_promotion(self) -> RoleRecord | None:
        text = self.log.notes.get("promoting")
        if text is None:
            return None
        promotion = msgspec.json.decode(text, type=PromotionRecord)
        began = (promotion.noted.epoch, promotion.at_ms)
        starts = self.log.head.epoch_starts
        return promotion.noted if any((one.epoch, one.at_ms) == began for one in starts) else None

    def remembered(self) -> list[Address]:
        """The addresses of known daemons in the role record (`knows`), newest first."""
        record = self.load()
        return [] if record is None else [Address.parse(text) for text in record.knows]

    def all(self, *newest: Address, primary: Address | None = None) -> list[Address]:
        """These addresses and all known ones, without this daemon's and that of `primary`, if given."""
        return self.others([*newest, *self.remembered(), *self.local()], primary=primary)

    def others(self, addresses: Sequence[Address], *, primary: Address | None = None) -> list[Address]:
        """These addresses, each once, without this daemon's and that of `primary`, if given."""
        excluded = [self.own(), *([primary] if primary is not None else [])]
        fresh = dict.fromkeys(_with_http(address, addresses) for address in addresses if address)
        return [address for address in fresh if not any(address.is_same(one) for one in excluded)]

    def complete(self, addresses: Sequence[Address]) -> list[Address]:
        """These addresses, each with the HTTP part that is known by now."""
        known = [*addresses, *self.remembered(), *self.local()]
        return list(dict.fromkeys(_with_http(address, known) for address in addresses))

    def to_remember(self, addresses: Sequence[Address]) -> tuple[str, ...]:
        """At most `MAX_KNOWN` of these and the remembered addresses, newest first, without this daemon's."""
        return tuple(map(str, self.others([*addresses, *self.remembered()])))[:MAX_KNOWN]


def _with_http(address: Address, known: Sequence[Address]) -> Address:
    """Add the HTTP part to an address, if that of the same daemon is known: claims are sent over HTTP."""
    if address.http:
        return address
    same = (one for one in known if one.http and one.native == address.native)
    return next(same, address)
