"""Addresses of other daemons, in tests that are not about them."""

from twisted.internet.task import Clock

from synrepl.base.access import Keyring
from synrepl.replicas.peer_addresses import PeerAddresses
from synrepl.transports.credentials import Credentials

__all__ = ["open_addresses"]


def open_addresses() -> PeerAddresses:
    """Those of a daemon without a secret and keys: it uses all."""
    return PeerAddresses((), Credentials(), Keyring(), Clock(), notes={})
