"""The secrets with which this daemon and another one prove themselves to each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from synrepl.errors import NotConnected
from synrepl.ports.access import Key, Keyring, Right
from synrepl.ports.history import Lease
from synrepl.replication.addresses import Address
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.signatures import Signer


@dataclass(frozen=True, eq=False, repr=False)
class PeerSecrets:
    """Finds the secrets for requests to an address: that of the key that made its lease, and the own secret.

    An HMAC with the secret of a lease's key tells the holder of that key nothing new. If several keys made
    leases with one address, the key with the right `administer` counts, or else the oldest lease: so no other
    peer can get in the way of a daemon by naming its address.
    """

    keys: Keyring
    credentials: Credentials
    leases: Callable[[], Sequence[Lease]]

    def find(self, address: Address, *, must_administer: bool) -> list[Signer]:
        """Return what to sign with, to try in order; empty if requests to this address are not signed.

        With `must_administer`, it has this right. Raises `NotConnected` if there is none, and this daemon has
        a secret or keys.
        """
        own = self.credentials.secret
        if self.credentials.is_configured(address.http) and own is not None:
            return [Signer.of(own)]
        key = self._lease_key(address)
        if key is not None and must_administer and Right.ADMINISTER not in key.rights:
            key = None
        found = [] if own is None else [Signer.of(own)]
        if key is not None and key.secret is not None:
            found = [Signer.of(key.secret), *found]
        elif key is not None and key.record is not None:
            # Its holder may know our own secret too, and grants that more than the record proves.
            found.append(Signer(key=key.name, record=key.record))
        if must_administer and self.keys.is_required and key is None and own is None:
            why = "no key with the right administer is known for it"
            raise NotConnected(f"{address.http} cannot prove that it may be primary: {why}")
        return list(dict.fromkeys(found))

    def _lease_key(self, address: Address) -> Key | None:
        leases = sorted(self.leases(), key=lambda lease: (lease.ended_ms is not None, lease.made_ms))
        keys = [
            self.keys.named(lease.key)
            for lease in leases
            if lease.key is not None and Address.parse(lease.address).http == address.http
        ]
        known = [key for key in keys if key is not None]
        known.sort(key=lambda key: Right.ADMINISTER not in key.rights)
        return known[0] if known else None
