"""How long the sides of a connection may be silent."""

from typing import Final

import msgspec


class Keepalive(msgspec.Struct, frozen=True):
    """Timeouts of a session, in seconds. The defaults of PING are those of every release.

    * `ping_seconds`: send PING after sending nothing for this long
    * `timeout_seconds`: a replica, its upstream, and a peer that ever sent PING time out after this silence
    * `request_seconds`: a server closes a connection without a request after this long, unless the peer sends
      PING; 0: never
    * `handshake_seconds`: a replica must send HELLO within it

    Other peers that have sent a request do not time out (docs/reference/peers.md#tcp-keepalive).
    """

    ping_seconds: float = 5.0
    timeout_seconds: float = 25.0
    request_seconds: float = 30.0
    handshake_seconds: float = 30.0


KEEPALIVE: Final = Keepalive()
