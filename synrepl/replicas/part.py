"""What the room of replicas runs in a daemon."""

import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.logger import Logger

from synrepl.base.access import LOCAL, Access
from synrepl.base.problems import Notice, Problem
from synrepl.base.response_errors import NeverSent
from synrepl.base.tasks import Tasks
from synrepl.daemon.other_daemons import IFileCopies, IServedChannel, NoChannel
from synrepl.daemon.parts import DaemonParts, Part
from synrepl.errors import ReplicationError
from synrepl.replicas.command_forwarder import CommandForwarder
from synrepl.replicas.copied_files import CopiedFiles
from synrepl.replicas.described import backup_problem, describe, notices, own_readers
from synrepl.replicas.diverged_facts import DivergedFacts, keep_diverged
from synrepl.replicas.http.peer_clients import PeerClient, PeerHttp
from synrepl.replicas.metrics import ReplicasMetrics
from synrepl.replicas.peer_addresses import PeerAddresses
from synrepl.replicas.relay.hello import RelayHello
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.replica.replica_states import ReplicaState
from synrepl.replicas.roles.manager import RoleManager
from synrepl.replicas.roles.promotion import Promotion
from synrepl.replicas.roles.role_states import Role
from synrepl.replicas.settings import ReplicasSettings
from synrepl.replicas.write_forwarder import WriteForwarder
from synrepl.replication.addresses import Address
from synrepl.replication.hooks import Hooks
from synrepl.storage.append_gate import starting
from synrepl.storage.log import Log
from synrepl.storage.threads import ReactorThread
from synrepl.transports.endpoints import REPLICA_TYPES, client_endpoint, is_private

if TYPE_CHECKING:
    from synrepl.replicas.http.served_replicas import INativeTransport
    from synrepl.replicas.replica.conversation import IUpstream
    from synrepl.replicas.replica.replica import Replica


class ReplicasPart(Part):
    """The room's part of a daemon: its role, its upstream, its replicas and their leases.

    It answers all hooks. Until `start` the log refuses facts.
    """

    _logger = Logger()

    def __init__(self, daemon: "DaemonParts", settings: ReplicasSettings) -> None:
        log, reactor = daemon.log, daemon.reactor
        self._settings = settings
        self._began = reactor.seconds()
        self._listeners = daemon.listeners
        self._reactor = reactor
        self._log = log
        self._metrics = daemon.metrics
        self.numbers = ReplicasMetrics(daemon.registry)
        self._publisher = daemon.publisher
        self._channel: IServedChannel = NoChannel()
        self._tasks = Tasks(self._logger, "copies")
        self.addresses = PeerAddresses(
            settings.upstream_addresses,
            daemon.credentials,
            daemon.keyring,
            reactor,
            notes=log.notes,
        )
        self._peer_http = PeerHttp(reactor, self.addresses)
        self._files = CopiedFiles(self._peer_http, self._tasks)
        self._diverged_facts = DivergedFacts(
            daemon.settings.database_path, ReactorThread(reactor, "leftovers")
        )
        log.gate.close(starting)
        self.roles = RoleManager(
            log,
            reactor,
            name=self.name,
            has_upstream=bool(settings.upstream),
            stale_seconds=settings.stale_seconds,
            refuses_stale_reads=settings.refuse_stale_reads,
            address=daemon.listeners.address,
            owner=self,
            peers=PeerClient(self._peer_http),
            metrics=self.numbers.roles,
        )
        self.commands = CommandForwarder(
            self._publisher.follower_commands,
            reactor,
            origin=f"{log.uuid}-{secrets.token_hex(4)}",
            is_active=lambda: self.roles.role == Role.REPLICA,
            dropped=lambda name: self._metrics.commands_dropped.labels(name).inc(),
        )
        self.registry = ReplicaRegistry(
            log,
            self._publisher,
            reactor,
            settings,
            self.roles,
            keys=daemon.keyring,
            expiry=daemon.expiry,
            channel=lambda: self._channel,
        )
        self.promotion = Promotion(self.roles, self.registry.issued, missing_files=self._files.missing_upto)
        self.native_transports: dict[str, INativeTransport] = {}
        """The open native connections over HTTP, by id."""
        self.write_forwarder = make_write_forwarder(log, self.roles, self._files.wait_for, self._peer_http)
        # Who hears of what, as `Daemon._open` lists it for the core.
        self._publisher.follower_commands.forwarders.append(self.commands)
        self.registry.subscribe()
        log.epochs.on_started(self._on_epoch_started)

    def hooks(self) -> Hooks:
        return Hooks(
            role=self.roles,
            forwarding=self.write_forwarder,
            acknowledgements=self.registry.acknowledgements,
            leases=self.registry,
            keys=self.registry.issued,
            hello=RelayHello(self.registry),
        )

    def other_daemons(self) -> "ReplicasPart":
        return self

    @property
    def name(self) -> str:
        """The name of this daemon on its upstream's list of replicas."""
        return self._settings.name_of(self._log.uuid)

    @property
    def replica(self) -> "Replica | None":
        """The replica's side of the connection to the upstream; None unless this daemon is a replica."""
        return self.roles.replica

    async def start(self) -> None:
        """Assume the role in the settings or the log."""
        self.roles.start()
        # Before the ports open, so that the first request need not be retried.
        await self.roles.started()

    async def stop(self) -> None:
        """Stop forwarding, following and serving, in this order."""
        await self.write_forwarder.stop()
        self._tasks.stop()
        self.commands.stop()
        self.promotion.candidate.stop()
        self.roles.stop()
        await self._files.stop()
        await self.registry.stop()
        await self._peer_http.stop()
        await self._diverged_facts.stop()

    def _on_epoch_started(self) -> None:
        """On a replica: disconnect followers if the epoch began with lost facts."""
        epoch_start = self._log.head.epoch_starts[-1]
        if epoch_start.stream and self.roles.role == Role.REPLICA:
            self._listeners.history_lost(epoch_start.stream)

    def role_changed(self) -> None:
        """Serve, forward and fetch as the role says."""
        if self.roles.role == Role.PRIMARY:
            self.commands.hand_back()
            self.registry.issued.lead()
        if self.roles.role == Role.FENCED:
            # They come back, and are told where the primary is.
            self.registry.close("this daemon is fenced: another one is primary")
        self._tasks.start(self._fetch_from_primary(), "choosing the source of files")
        self._role_may_have_changed()
        self._publisher.read_gate.changed()

    def _role_may_have_changed(self) -> None:
        for subscriber in self.roles.subscribers:
            subscriber()

    async def _fetch_from_primary(self) -> None:
        """Make a replica fetch files over HTTP from its upstream or the primary. A primary fetches none."""
        url = ""
        if self.roles.role == Role.REPLICA and self.replica is not None:
            # Until the upstream has told its own address, that of the primary is one of before.
            url = self.addresses.first_usable(
                self.replica.upstream_http,
                self.roles.primary.http,
                is_worth_telling=self.replica.welcome is not None,
            )
        await self._files.fetch_from(url)

    def use_files(self, files: IFileCopies) -> None:
        """Copy these files from the upstream."""
        self._files.use(files)

    def use_channel(self, served: IServedChannel) -> None:
        """Pass this channel to replicas, and join it with that of the upstream."""
        self._channel = served

    def file_refusal(self) -> ReplicationError | None:
        """Return the error with which uploads are refused now; None if they are taken."""
        return self.roles.file_refusal()

    def follow(self, where: Address | None) -> "Replica":
        """Make a replica that follows this address; with None the upstream in the settings."""
        # Imported on use: a primary does not load it, nor the upstreams below.
        from synrepl.replicas.replica.ephemeral_facts import KeptEphemeral
        from synrepl.replicas.replica.replica import Replica

        return Replica(
            self._log,
            self._upstreams(where),
            self._reactor,
            self._settings,
            ephemeral=KeptEphemeral(self._log),
            keep_leftovers=partial(keep_diverged, self._log, self._diverged_facts.keep),
            jitter=partial(random.uniform, 0.7, 1.3),
            on_primary_moved=self.roles.on_primary_moved,
            on_change=self._replica_changed,
            commands=self.commands,
            on_command=self._publisher.broadcast,
            is_own_replica=self.registry.is_followed_by,
            take_keys=self.registry.issued.take,
            channel=self._channel,
        )

    def _replica_changed(self) -> None:
        self._publisher.read_gate.changed()
        replica = self.replica
        if replica is not None and replica.state in (ReplicaState.READY, ReplicaState.LIVE):
            self.addresses.learned(replica.upstream.where, replica.upstream_http)
            # A join replaces the notes that were stored before it.
            self._tasks.start(self._store_addresses(replica), "storing the addresses of upstream and primary")
        if replica is not None and replica.state is ReplicaState.READY:
            self._tasks.start(self._fetch_from_primary(), "choosing the source of files")
            self._role_may_have_changed()  # the upstream may have named the homeserver

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
        # Imported on use, as in `_upstream`: a primary follows nobody.
        from synrepl.replicas.replica.upstreams import NoUpstream

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
            address=lambda: str(self._listeners.address()),
            keys=lambda: self.registry.issued.digest,
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
        from synrepl.replicas.http.native_endpoint import upstream_over_http

        secret = self.addresses.credentials_for(where.http)
        return upstream_over_http(upstream, self._reactor, where.http, secret)

    def listed_daemons(self) -> Sequence[Address]:
        """The daemons in `--upstream`, where they can be asked."""
        return self.addresses.listed

    def replica_address(self, uuid: str) -> Address | None:
        """Where the replica with this uuid can be reached by its lease; None without one."""
        lease = self.registry.leases[uuid]
        if lease is None or lease.ended_ms is not None:
            return None
        return Address.parse(lease.address) or None

    def known_daemons(self) -> Sequence[Address]:
        """The daemons in the notes, the settings and the leases, but this one."""
        noted = self._log.notes.get("peers", "[]")
        known = [*msgspec.json.decode(noted, type=list[str])]
        known += [text for text in (self._log.notes.get("primary_at"),) if text]
        known += map(str, self._settings.upstream_addresses)
        known += [lease.address for lease in self.registry.leases.all() if lease.address]
        mine = str(self._listeners.address())
        return [Address.parse(text) for text in dict.fromkeys(known) if text != mine]

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        return describe(self.roles, self.registry, access)

    def notices(self, access: Access = LOCAL) -> Sequence[Notice]:
        replicas, leases = self.registry.status(), self.registry.describe_leases()
        return list(notices(own_readers(replicas, access), own_readers(leases, access)))

    def collect(self) -> None:
        replica = self.replica
        join = None if replica is None else replica.status().get("join")
        self._metrics.role.clear()
        for role in Role:
            self._metrics.role.labels(role).set(role == self.roles.role)
        self.numbers.collect(
            self.registry.status(), self.registry.describe_leases(), join, self.registry.backups()
        )

    def problems(self) -> Sequence[Problem]:
        """The problems of this daemon's role, first the one that makes it not ready."""
        unreadiness = self.roles.unreadiness()
        if unreadiness is None:
            return self._other_problems()
        state, why, since = unreadiness
        return [Problem(f"{state}: {why}", since, not_ready=True), *self._other_problems()]

    def _other_problems(self) -> list[Problem]:
        return [
            *self._role_problems(),
            *self._unrevoked_keys(),
            *self.addresses.problems(),
            *self._backup_problems(),
        ]

    def _backup_problems(self) -> list[Problem]:
        backups, now, most = self.registry.backups(), self._reactor.seconds(), self._settings.backup_seconds
        why = backup_problem(backups, most, now, self._began)
        age = min((one["age_seconds"] for one in backups), default=now - self._began)
        return [Problem(why, now - age + (most or 0.0))] if why else []

    def _unrevoked_keys(self) -> list[Problem]:
        issued = self.registry.issued
        if not issued.unrevoked:
            return []
        names = ", ".join(issued.unrevoked)
        what = f"keys were revoked here, and are valid at the upstream, which lost that: {names}"
        return [Problem(f"{what}; run synrepl keys revoke at the primary", issued.unrevoked_since)]

    def _role_problems(self) -> list[Problem]:
        replica = self.replica
        if replica is None or replica.state is ReplicaState.STOPPED:
            return self.roles.rivals.problems
        if replica.state is ReplicaState.LIVE and self.roles.primary.is_same(self._listeners.address()):
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


def make_part(daemon: DaemonParts) -> ReplicasPart:
    """Make the part of a daemon with these settings."""
    assert isinstance(daemon.settings, ReplicasSettings)
    return ReplicasPart(daemon, daemon.settings)


def make_write_forwarder(
    log: Log, roles: RoleManager, has_file: Callable[[str, float], Awaitable[bool]] | None, http: PeerHttp
) -> WriteForwarder:
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
        is_active=lambda: roles.role == Role.REPLICA,
        refusal=roles.forwarding_refusal,
        has_file=has_file,
        logger=Logger(namespace="synrepl.relaying"),
    )


def _is_endpoint(text: str) -> bool:
    """Whether this is an endpoint of a permitted type: a peer may have sent anything."""
    return text.partition(":")[0] in REPLICA_TYPES
