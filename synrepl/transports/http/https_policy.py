"""How Twisted's agents make TLS connections with our credentials."""

from typing import TYPE_CHECKING

from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from synrepl.transports.credentials import Credentials

if TYPE_CHECKING:
    from synrepl.transports.tls import ClientTls


@implementer(IPolicyForHTTPS)
class HttpsPolicy:
    """The policy of these credentials. They have none themselves: a daemon that asks nobody has them, too."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def creatorForNetloc(self, hostname: bytes, port: int) -> "ClientTls":
        return self._credentials.tls_for(hostname.decode("ascii"))
