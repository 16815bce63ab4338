"""What a daemon remembers of its role through a restart."""

import msgspec

__all__ = ["RoleRecord", "PromotionRecord"]


class RoleRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered through a restart: the role, who is primary in which epoch, who must still be `told`
    so, and everybody whom this daemon `knows`."""

    role: str
    epoch: int
    uuid: str = ""
    address: str = ""
    told: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()


class PromotionRecord(msgspec.Struct, frozen=True):
    """An epoch that is about to begin, when, and what is to be remembered then."""

    at_ms: int
    noted: RoleRecord
