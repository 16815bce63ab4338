"""Construction of the forwarder of writes that are posted to a replica."""

from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from synrepl.daemon.replication import ReplicationServices
from synrepl.replication.roles import REPLICA
from synrepl.replication.write_forwarder import WriteForwarder
from synrepl.storage import Log
from synrepl.transports.credentials import Credentials

if TYPE_CHECKING:
    from synrepl.transports.http.append_client import HttpAppender

__all__ = ["make_write_forwarder"]


def make_write_forwarder(
    log: Log, reactor: Any, replication: ReplicationServices, credentials: Credentials
) -> WriteForwarder:
    """Make a forwarder that is active while this daemon is a replica; its client is loaded on first use."""

    def make_client(url: str) -> "HttpAppender":
        from synrepl.transports.http.append_client import HttpAppender

        return HttpAppender(reactor, url, secret=credentials)

    roles = replication.roles
    return WriteForwarder(
        log,
        reactor,
        make_client,
        lambda: roles.primary.http or None,
        is_active=lambda: roles.role == REPLICA,
        refusal=roles.forwarding_refusal,
        has_file=replication.files.wait_for,
        logger=Logger(namespace="synrepl.relaying"),
    )
