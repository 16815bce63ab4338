"""Replication: the parts that let a daemon be a replica, and serve replicas, built from the settings."""

import random
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from twisted.logger import Logger

from synrepl.config import Settings
from synrepl.errors import StorageError
from synrepl.files.files import Files
from synrepl.files.store import FileStore
from synrepl.ports.access import Keyring
from synrepl.ports.metrics import Metrics
from synrepl.ports.problems import Problem
from synrepl.ports.response_errors import NeverSent
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import ExpiryClock
from synrepl.replicas.diverged_facts import DivergedFacts
from synrepl.replicas.http.peer_clients import HttpFiles, PeerClient, PeerHttp
from synrepl.replicas.peer_addresses import PeerAddresses
from synrepl.replicas.relay.registry import ReplicaRegistry
from synrepl.replicas.replica.states import ReplicaState
from synrepl.replicas.replica.upstreams import NoUpstream
from synrepl.replicas.roles.manager import RoleManager
from synrepl.replicas.roles.messages import FENCED, PRIMARY, REPLICA, ReadOnlyHere
from synrepl.replicas.write_forwarder import WriteForwarder
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import CommandForwarder
from synrepl.replication.holdings import Holdings
from synrepl.replication.own_facts import warn_of_unproven
from synrepl.replication.publisher import Publisher
from synrepl.replication.retention import Retention, keys_of
from synrepl.storage.log import Log
from synrepl.storage.threads import ReactorThread
from synrepl.streams.table import StreamTable
from synrepl.transports.credentials import Credentials
from synrepl.transports.endpoints import REPLICA_TYPES, client_endpoint, is_private
from synrepl.transports.http.http_client import HttpClient

if TYPE_CHECKING:
    from synrepl.channel.resp.server import RespServer
    from synrepl.replicas.replica.conversation import IUpstream
    from synrepl.replicas.replica.replica import Replica

STUCK: Final = (ReplicaState.DISCONNECTED, ReplicaState.REFUSED, ReplicaState.STOPPED)
"""States of a replica whose reason is worth telling to whoever waits for its copy."""


class ReplicationServices:
    """The role, the relays, the leases and the files of one daemon.

    `address` returns the addresses of this daemon for others. `changed` is called whenever the role may have
    changed. Until `start` the log refuses facts.
    """

    _logger = Logger()

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        log: Log,
        publisher: Publisher,
        *,
        table: StreamTable,
        metrics: Metrics,
        keyring: Keyring,
        credentials: Credentials,
        address: Callable[[], Address],
        changed: Callable[[], object],
        resp: "RespServer | None" = None,
    ) -> None:
        self._settings = settings
        self._resp = resp
        self._reactor = reactor
        self._log = log
        self._metrics = metrics
        self.own_address = address
        self._changed = changed
        self._publisher = publisher
        self.commands = CommandForwarder(
            publisher.follower_commands,
            reactor,
            origin=f"{log.uuid}-{secrets.token_hex(4)}",
            is_active=lambda: self.roles.role == REPLICA,
            dropped=lambda name: metrics.commands_dropped.labels(name).inc(),
        )
        publisher.follower_commands.forwarders.append(self.commands)
        self._files_url = ""
        self._tasks = Tasks(self._logger, "copies")
        self.addresses = PeerAddresses(
            settings.upstream_addresses,
            credentials,
            keyring,
            reactor,
            notes=log.notes,
        )
        self._peer_http = PeerHttp(reactor, self.addresses)
        self._diverged_facts = DivergedFacts(settings.database_path, ReactorThread(reactor, "leftovers"))
        self.files = Files(
            log,
            FileStore(settings.files_path, seconds=reactor.seconds),
            ReactorThread(reactor, "files"),
            reactor,
            rule=settings.fetch_files,
            max_bytes=settings.max_file_bytes,
            refusal=lambda: self.roles.file_refusal(),  # noqa: PLW0108  # roles are created later
            find_stream=table.get,
            logger=Logger(namespace="synrepl.files"),
        )
        log.write_barrier = _starting
        self.roles = RoleManager(
            log,
            reactor,
            name=self.name,
            has_upstream=bool(settings.upstream),
            owner=self,
            peers=PeerClient(self._peer_http),
        )
        expiry = ExpiryClock(reactor, time.monotonic)
        self.relays = ReplicaRegistry(
            log,
            publisher,
            reactor,
            settings,
            self.roles,
            keys=keyring,
            expiry=expiry,
            channel=lambda: None if resp is None else resp.channel,
        )
        keyring.doubt = self._doubt_of_keys
        self.write_forwarder = make_write_forwarder(log, self.roles, self.files, self._peer_http)
        self.holdings = publisher.holdings = Holdings(
            lambda: log.notes,
            joining=lambda: not self.roles.is_whole,
            retired=self.roles.reading_refusal,
            primary=lambda: self.roles.primary if self.roles.role != PRIMARY else Address(),
        )
        log.copies.on_replaced(self._warn_of_filter)
        self.retention = Retention(
            log,
            reactor,
            settings,
            keys=keys_of(table),
            lowest=self.relays.leases.lowest,
            expiry=expiry,
        )

    @property
    def name(self) -> str:
        """The name of this daemon on its upstream's list of replicas."""
        return self._settings.name_of(self._log.uuid)

    @property
    def replica(self) -> "Replica | None":
        """The replica's side of the connection to the upstream; None unless this daemon is a replica."""
        return self.roles.replica

    async def start(self) -> None:
        """Assume the role in the settings or the log. Raises `StorageError` for a bad file store."""
        await self.files.start()
        self.roles.start()
        # Before the ports open, so that the first request need not be retried.
        await self.roles.started()
        self.retention.start()
        self._warn_of_filter()
        primary = self._settings.instance_name if self.roles.role == PRIMARY else ""
        warning = warn_of_unproven(self._log, self._logger, primary=primary)
        self._tasks.start(warning, "looking for forged facts")

    def _warn_of_filter(self) -> None:
        if held := self.holdings.describe():
            self._logger.warn("{held}: requests for other streams and writers are refused", held=held)

    @property
    def stops(self) -> Sequence[Callable[[], Awaitable[None] | None]]:
        """What stops forwarding, following and serving, in order."""
        return (
            self.write_forwarder.stop,
            self._tasks.stop,
            self.commands.stop,
            self.retention.stop,
            self.roles.stop,
            self.files.stop,
            self.relays.stop,
            self._peer_http.stop,
            self._diverged_facts.stop,
        )

    def role_changed(self) -> None:
        """Serve, forward and fetch as the role says."""
        if self.roles.role == PRIMARY:
            self.commands.hand_back()
            self.relays.issued.lead()
        if self.roles.role == FENCED:
            # They come back, and are told where the primary is.
            self.relays.close("this daemon is fenced: another one is primary")
        is_replica = self.roles.role == REPLICA
        self._publisher.follower_commands.forward_append = self.write_forwarder.append if is_replica else None
        self._tasks.start(self._fetch_from_primary(), "choosing the source of files")
        self._changed()
        self.holdings.changed()

    async def _fetch_from_primary(self) -> None:
        """Make a replica fetch files over HTTP from its upstream or the primary. A primary fetches none."""
        url = ""
        if self.roles.role == REPLICA and self.replica is not None:
            # Until the upstream has told its own address, that of the primary is one of before.
            url = self.addresses.first_usable(
                self.replica.upstream_http,
                self.roles.primary.http,
                is_worth_telling=self.replica.welcome is not None,
            )
        if url == self._files_url:
            return
        self._files_url = url
        await self.files.set_source(HttpFiles(self._peer_http.client_for(url), url) if url else None)

    def claim_refused(self, code: str) -> None:
        """Count a refused claim."""
        self._metrics.claims_refused.labels(code).inc()

    def later_epoch_reported(self) -> None:
        """Count a replica's report of a later epoch."""
        self._metrics.later_epochs.inc()

    async def missing_files(self, upto: int) -> Sequence[Any]:
        """The files of facts up to this serial that this daemon lacks."""
        return await self.files.missing_upto(upto)

    def keys_digest(self) -> str:
        """The digest of the issued keys that the upstream has sent."""
        return self.relays.issued.upstream_digest

    async def take_revoked(self, issued: Collection[str]) -> list[str]:
        """Revoke the issued keys with these ids, as others know them to be revoked; return the names."""
        return await self.relays.issued.take_revoked(issued)

    def follow(self, where: Address | None) -> "Replica":
        """Make a replica that follows this address; with None the upstream in the settings."""
        # Imported on use: a primary does not load it, nor the upstreams below.
        from synrepl.replicas.replica.replica import Replica

        return Replica(
            self._log,
            self._upstreams(where),
            self._reactor,
            self._settings,
            ephemeral=self._log.ephemeral.names,
            keep_leftovers=self._diverged_facts.keep,
            jitter=partial(random.uniform, 0.7, 1.3),
            on_primary_moved=self.roles.on_primary_moved,
            on_change=self._replica_changed,
            commands=self.commands,
            on_command=self._publisher.broadcast,
            is_own_replica=self.relays.is_followed_by,
            take_keys=self.relays.issued.take,
            channel=lambda: None if self._resp is None else self._resp.uplink,
        )

    def _replica_changed(self) -> None:
        self.holdings.changed()
        replica = self.replica
        if replica is not None and replica.state in (ReplicaState.READY, ReplicaState.LIVE):
            self.addresses.learned(replica.upstream.where, replica.upstream_http)
            # A join replaces the notes that were stored before it.
            self._tasks.start(self._store_addresses(replica), "storing the addresses of upstream and primary")
        if replica is not None and replica.state is ReplicaState.READY:
            self._tasks.start(self._fetch_from_primary(), "choosing the source of files")
            self._changed()  # the upstream may have named the homeserver

    async def _store_addresses(self, replica: "Replica") -> None:
        """Store the addresses of upstream and primary: after a restart they may be away, and a promotion must
        notify both."""
        where = replica.upstream.where
        at = Address(native=where.native, http=replica.upstream_http)
        upstream, primary, notes = str(at), str(replica.primary), self._log.notes
        if (told := self.addresses.told) != notes.get("told_http", ""):
            await self._log.note(told_http=told)
        if (notes.get("upstream_at"), notes.get("primary_at")) != (upstream, primary):
            await self._log.note(upstream_at=upstream, primary_at=primary)

    def _upstreams(self, where: Address | None) -> "list[IUpstream]":
        """Make the upstreams to follow: the primary at `where`, if one is known, then those of the settings.

        The settings stay in the list: an operator who restarts a replica with another --upstream must not be
        ignored because a primary that is gone is remembered.
        """
        configured = self._settings.upstream_addresses
        over_http = self._is_over_http
        if where is None:
            found = configured
            known = Address.parse(self._log.notes.get("upstream_at", ""))
            if not over_http and known.native == configured[0].native:
                found = [known, *configured[1:]]
        else:
            found = [where, *(one for one in configured if not one.is_same(where))]
        made: list[IUpstream] = []
        why = ""
        for one in found:
            try:
                made.append(self._upstream(one, over_http=over_http))
            except NeverSent as error:
                why = why or str(error)
        return made or [NoUpstream(found[0], why)]

    def may_follow(self, where: Address) -> bool:
        """Whether an address that a peer has told may be followed."""
        try:
            self._upstream(where, over_http=self._is_over_http)
        except NeverSent:
            return False
        return True

    @property
    def _is_over_http(self) -> bool:
        configured = self._settings.upstream_addresses
        return bool(configured and configured[0].http)

    def _upstream(self, where: Address, *, over_http: bool) -> "IUpstream":
        """Make the upstream at this address. Raises `NeverSent` if it may not be used (`PeerAddresses`)."""
        # Imported on use: a primary needs none of these.
        from synrepl.replicas.native_client import NativeUpstream

        upstream = partial(
            NativeUpstream,
            clock=self._reactor,
            metrics=self._metrics,
            settings=self._settings,
            where=where,
            address=lambda: str(self.own_address()),
            keys=lambda: self.relays.issued.digest,
        )
        if not (where.http and (over_http or not _is_endpoint(where.native))):
            try:
                secret = self.addresses.secret_for(where.native)
            except NeverSent:
                if not (where.http and self.addresses.is_listed(where.http)):
                    raise
            else:
                endpoint = client_endpoint(self._reactor, where.native, secret.files)
                return upstream(endpoint, secret=secret, is_private=partial(is_private, where.native))
        from synrepl.replicas.http.native_endpoint import PROXY_SUSPICION, NativeHttpEndpoint

        secret = self.addresses.credentials_for(where.http)
        over = NativeHttpEndpoint(HttpClient(self._reactor, where.http, secret=secret))
        # Where the secret may go is decided for the URL.
        return upstream(over, secret=secret, is_private=lambda peer: True, suspicion=PROXY_SUSPICION)

    def listed_daemons(self) -> Sequence[Address]:
        """The daemons in `--upstream`, where they can be asked."""
        return self.addresses.listed

    def replica_address(self, uuid: str) -> Address | None:
        """Where the replica with this uuid can be reached by its lease; None without one."""
        lease = self.relays.leases[uuid]
        if lease is None or lease.ended_ms is not None:
            return None
        return Address.parse(lease.address) or None

    def known_daemons(self) -> Sequence[Address]:
        """The daemons in the notes, the settings and the leases, but this one."""
        noted = self._log.notes.get("peers", "[]")
        known = [*msgspec.json.decode(noted, type=list[str])]
        known += [text for text in (self._log.notes.get("primary_at"),) if text]
        known += map(str, self._settings.upstream_addresses)
        known += [lease.address for lease in self.relays.leases.all() if lease.address]
        mine = str(self.own_address())
        return [Address.parse(text) for text in dict.fromkeys(known) if text != mine]

    def _unreadiness(self) -> tuple[str, str, float] | None:
        """Why this daemon may lack facts: its state, an explanation, and since when in Unix seconds."""
        replica, roles = self.replica, self.roles
        if roles.role == "fenced":
            return "fenced", roles.why, roles.since
        if roles.role != REPLICA or replica is None:
            return None
        if not replica.is_whole:
            why = f": {replica.why}" if replica.state in STUCK and replica.why else ""
            return "joining", f"this replica has no complete copy yet{why}", replica.since
        if replica.state is ReplicaState.STOPPED:
            return "stopped", replica.why, replica.since
        if why := replica.staleness(self._settings.stale_seconds):
            return "stale", why, self._reactor.seconds() - replica.lag_seconds()
        return None

    def _doubt_of_keys(self) -> str:
        """Why an issued key may have been revoked without this daemon's knowledge; empty if it would know."""
        replica, seconds = self.replica, self._settings.stale_seconds
        if replica is None or self._settings.trust_stale_keys:
            return ""
        heard = replica.freshness.heard_seconds_ago
        if heard is not None and heard <= seconds:
            return ""
        since = "since its start" if heard is None else f"for {heard:.0f} seconds"
        return f"this replica has not heard from its upstream {since}"

    def _state(self) -> str:
        unreadiness = self._unreadiness()
        if self.roles.role != "fenced" and self.roles.handover.is_active:
            return "handing over"
        return "" if unreadiness is None else unreadiness[0]

    def lag_seconds(self) -> float:
        """Seconds since this copy was last caught up; 0 if this daemon is no replica."""
        return self.replica.lag_seconds() if self.replica is not None else 0.0

    def lag_rows(self) -> int:
        """The number of facts that this copy is known to lack; 0 if this daemon is no replica."""
        return self.replica.freshness.lag_rows() if self.replica is not None else 0

    def status(self) -> dict[str, Any]:
        """The replication part of the status: role, upstream, replicas, leases."""
        roles, replica = self.roles, self.replica
        return {
            "role": roles.role,
            "state": self._state(),
            "why": roles.why,
            "name": self.name,
            "address": str(self.own_address()),
            "primary": str(roles.primary),
            "holds": self.holdings.describe(),
            "upstream": None if replica is None else replica.status(),
            "replicas": self.relays.status(),
            "leases": self.relays.describe_leases(),
            "epoch_starts": [msgspec.to_builtins(epoch_start) for epoch_start in self._log.head.epoch_starts],
            "unnotified": [str(address) for address in roles.notifier.unnotified],
        }

    def problems(self) -> list[Problem]:
        """The problems of this daemon's role, first the one that makes it not ready."""
        unreadiness = self._unreadiness()
        if unreadiness is None:
            return self._other_problems()
        state, why, since = unreadiness
        return [Problem(f"{state}: {why}", since, not_ready=True), *self._other_problems()]

    def _other_problems(self) -> list[Problem]:
        return [*self._role_problems(), *self._lost_revocations(), *self.addresses.problems()]

    def _lost_revocations(self) -> list[Problem]:
        issued = self.relays.issued
        if not issued.lost:
            return []
        names = ", ".join(issued.lost)
        what = f"keys were revoked here, and are valid at the upstream, which lost that: {names}"
        return [Problem(f"{what}; run synrepl keys revoke at the primary", issued.lost_since)]

    def _role_problems(self) -> list[Problem]:
        replica = self.replica
        if replica is None or replica.state is ReplicaState.STOPPED:
            return self.roles.rivals.problems
        if replica.state is ReplicaState.LIVE and self.roles.primary.is_same(self.own_address()):
            why = "there is no primary: this daemon follows its own replica; run synrepl promote --force"
            return [Problem(why, replica.since)]
        joining = [Problem(replica.rejoin_reason, replica.since)] if replica.rejoin_reason else []
        if (refusal := replica.refusal) is not None:
            since = self._reactor.seconds() - replica.lag_seconds()
            return [*joining, Problem(f"the upstream refuses: {refusal.code}: {refusal.message}", since)]
        is_away = replica.state in (ReplicaState.CONNECTING, ReplicaState.DISCONNECTED) and replica.why
        if is_away and replica.freshness.silence() > self._settings.timeout_seconds:
            return [*joining, Problem(f"the upstream cannot be reached: {replica.why}", replica.since)]
        return joining


def make_write_forwarder(log: Log, roles: RoleManager, files: Files, http: PeerHttp) -> WriteForwarder:
    """Make the forwarder of writes to the primary, which is active while this daemon is a replica.

    If the address of the primary may not be used, the upstream forwards them.
    """

    def url() -> str:
        return http.addresses.first_usable(
            roles.primary.http, "" if roles.replica is None else roles.replica.upstream_http
        )

    return WriteForwarder(
        log,
        http.reactor,
        http.call,
        lambda: url() or None,
        is_active=lambda: roles.role == REPLICA,
        refusal=roles.forwarding_refusal,
        has_file=files.wait_for,
        logger=Logger(namespace="synrepl.relaying"),
    )


def _starting(stream: str) -> StorageError:
    return ReadOnlyHere("starting", "this daemon is starting: try again", stream=stream)


def _is_endpoint(text: str) -> bool:
    """Whether this is an endpoint of a permitted type: a peer may have sent anything."""
    return text.partition(":")[0] in REPLICA_TYPES
