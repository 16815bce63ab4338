"""Addresses of the other daemons of a deployment, as far as one daemon knows them."""

from collections.abc import Callable, Sequence
from typing import Final

from synrepl.replication.addresses import Address
from synrepl.replication.roles.record import RoleStore

__all__ = ["MAX_KNOWN", "KnownDaemons"]

MAX_KNOWN: Final = 20


class KnownDaemons:
    """The addresses in the role record, and those that the daemon has from leases and replicas (`local`).

    `own` returns this daemon's address.
    """

    def __init__(
        self, store: RoleStore, *, own: Callable[[], Address], local: Callable[[], Sequence[Address]]
    ) -> None:
        self._store = store
        self._own = own
        self._local = local

    def remembered(self) -> list[Address]:
        """The addresses in the role record, newest first."""
        record = self._store.load()
        return [] if record is None else [Address.parse(text) for text in record.knows]

    def all(self, *newest: Address, primary: Address | None = None) -> list[Address]:
        """These addresses and all known ones, without this daemon's and the primary's."""
        return self.others([*newest, *self.remembered(), *self._local()], primary=primary)

    def others(self, addresses: Sequence[Address], *, primary: Address | None = None) -> list[Address]:
        """These addresses, without this daemon's and the primary's."""
        excluded = [self._own(), *([primary] if primary is not None else [])]
        fresh = dict.fromkeys(_with_http(address, addresses) for address in addresses if address)
        return [address for address in fresh if not any(address.is_same(one) for one in excluded)]

    def complete(self, addresses: Sequence[Address]) -> list[Address]:
        """These addresses, each with the HTTP part that is known by now."""
        known = [*addresses, *self.remembered(), *self._local()]
        return list(dict.fromkeys(_with_http(address, known) for address in addresses))

    def to_remember(self, addresses: Sequence[Address]) -> tuple[str, ...]:
        """These addresses and all remembered ones, newest first, at most `MAX_KNOWN`."""
        return tuple(map(str, self.others([*addresses, *self.remembered()])))[:MAX_KNOWN]

    def includes(self, address: Address, *more: Address) -> bool:
        """Whether this is a known address, or one of `more`."""
        # Compare the part that would be connected to: in a forged address the other part may be genuine.
        known = [*self.remembered(), *more, *self._local()]
        if address.http:
            return any(address.http == one.http for one in known)
        return bool(address) and any(address.native == one.native for one in known)


def _with_http(address: Address, known: Sequence[Address]) -> Address:
    """Add the HTTP part to an address, if that of the same daemon is known: claims are sent over HTTP."""
    if address.http:
        return address
    same = (one for one in known if one.http and one.native == address.native)
    return next(same, address)
