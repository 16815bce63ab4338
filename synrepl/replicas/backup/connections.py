"""How a backup reaches its upstream, and the HTTP API from which it fetches files."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

from synrepl.base.access import Keyring
from synrepl.base.metric_values import Registry
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
        self._metrics = Metrics(Registry())
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
                capabilities=CAPABILITIES,
            )
            if where.http:
                from synrepl.replicas.http.native_endpoint import upstream_over_http

                made.append(upstream_over_http(upstream, self._reactor, where.http, self._credentials))
            else:
                endpoint = client_endpoint(self._reactor, where.native, self._credentials.files)
                is_safe = partial(is_private, where.native)
                made.append(upstream(endpoint, secret=self._credentials, is_private=is_safe))
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
