"""How a backup reaches its upstream, and the HTTP API from which it fetches files."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from synrepl.base.access import Keyring
from synrepl.base.metrics import Metrics
from synrepl.replicas.backup.backup_run import CAPABILITIES
from synrepl.replicas.native_client import NativeUpstream
from synrepl.replicas.peer_addresses import PeerAddresses
from synrepl.replicas.replica.conversation import IUpstream
from synrepl.replicas.replica.replica import Replica
from synrepl.replicas.settings import CopySettings, UpstreamSettings
from synrepl.transports.credentials import Credentials
from synrepl.transports.endpoints import client_endpoint, is_private
from synrepl.transports.http.http_client import HttpClient


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackupSettings(CopySettings, UpstreamSettings):
    """What a backup is as a replica: it copies all, under a name of its own."""


class BackupConnections:
    """The connections of a backup to the daemons in `settings.upstream`, with these credentials."""

    def __init__(self, reactor: Any, settings: BackupSettings, credentials: Credentials) -> None:
        self._reactor = reactor
        self._settings = settings
        self._credentials = credentials
        self._metrics = Metrics(CollectorRegistry())
        self._addresses = PeerAddresses(
            settings.upstream_addresses, credentials, Keyring(), reactor, notes={}
        )
        self._clients: dict[str, HttpClient] = {}

    def upstreams(self) -> Sequence[IUpstream]:
        """Make the upstreams."""
        made: list[IUpstream] = []
        for where in self._settings.upstream_addresses:
            upstream = partial(
                NativeUpstream,
                clock=self._reactor,
                metrics=self._metrics,
                settings=self._settings,
                where=where,
                secret=self._credentials,
                capabilities=CAPABILITIES,
            )
            if where.http:
                from synrepl.replicas.http.native_endpoint import PROXY_SUSPICION, NativeHttpEndpoint

                over = NativeHttpEndpoint(HttpClient(self._reactor, where.http, secret=self._credentials))
                # Where the secret may go is decided for the URL.
                made.append(upstream(over, is_private=lambda peer: True, suspicion=PROXY_SUSPICION))
            else:
                endpoint = client_endpoint(self._reactor, where.native, self._credentials.files)
                made.append(upstream(endpoint, is_private=partial(is_private, where.native)))
        return made

    def files_of(self, replica: Replica) -> HttpClient | None:
        """Return the client of the upstream's files; None if it told no address that may be asked."""
        self._addresses.learned(replica.upstream.where, replica.upstream_http)
        url = self._addresses.first_usable(replica.upstream_http)
        if not url:
            return None
        if url not in self._clients:
            credentials = self._addresses.credentials_for(url)
            self._clients[url] = HttpClient(self._reactor, url, secret=credentials)
        return self._clients[url]

    async def stop(self) -> None:
        """Close the idle connections."""
        for client in self._clients.values():
            await client.stop()
