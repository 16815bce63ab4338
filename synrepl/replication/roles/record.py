"""A daemon's role as it is stored through a restart."""

import msgspec

__all__ = ["RoleRecord", "PromotionRecord"]


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
