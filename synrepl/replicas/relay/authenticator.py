"""Authenticator: finds out who a replica is, by its HELLO or its certificate. Also the answer, WELCOME."""

from msgspec.structs import replace

from synrepl.base.access import LOCAL, REMOTE, Access, Key
from synrepl.base.key_records import split_issued
from synrepl.base.rights import command_operation, missing_right
from synrepl.replicas.relay.interfaces import RelayConnection
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.roles.role_states import Role
from synrepl.replicas.wire import native
from synrepl.wire.text import identity_error, printable


class Authenticator:
    """Admits a replica by the secret in its HELLO, or by a TLS certificate that is registered as a key.

    Without keys, replicas of this machine have all rights, and others those of a replica.
    """

    def __init__(self, registry: ReplicaRegistry, connection: RelayConnection) -> None:
        self.greeting = native.Hello(uuid="", name="")
        """What the replica has said, without its secret."""
        self.access: Access = REMOTE
        self._registry = registry
        self._connection = connection
        self._key: Key | None = None
        """The key that the replica has shown."""

    def admit(self, greeting: native.Hello) -> native.Refused | None:
        """Note who the replica is, and its rights, or return why it is refused."""
        if greeting.version < native.VERSION:
            why = f"the replica speaks version {greeting.version} of the native protocol, and this daemon"
            needed = f"{native.VERSION}: update the replica to {native.VERSION_NEEDED}"
            return native.refusal("version", f"{why} {needed}")
        if not greeting.uuid:
            return native.refusal("version", "HELLO has no uuid")
        if why := identity_error(greeting.uuid, greeting.name, greeting.address):
            return native.refusal("bad_name", why)
        self.greeting = replace(greeting, secret="")
        keys = self._registry.keys
        if (access := self._certificate_access) is not None:
            self.access = access
        elif not keys.is_required:
            self.access = LOCAL if self._connection.is_local else REMOTE
        elif (key := keys.find(greeting.secret.encode())) is None:
            return self._unknown_key(greeting.secret)
        else:
            self.access, self._key = keys.access(key), key
        if why := missing_right(self.access, command_operation(native.Hello)):
            return native.refusal("no_rights", why)
        # Here already: an authenticated connection counts as the presence of this uuid.
        return self._registry.owner_refusal(greeting.uuid, self.access, name=greeting.listed_name)

    def _unknown_key(self, secret: str) -> native.Refused:
        if not secret:
            why = "the upstream requires a secret: set secret_file"
            if name := self._connection.certified_name:
                why = f"the certificate of {printable(name)} is not in keys_file there, or was revoked"
            return native.refusal("no_rights", why)
        name = split_issued(secret)[0]
        if name and not self._registry.keys.knows_issued(name):
            # A new key may be on its way to a replica.
            why = f"there is no key {printable(name)} at the upstream, or it was revoked"
            return native.refusal("no_rights", why, retryable=self._registry.roles.role == Role.REPLICA)
        return native.refusal("no_rights", "the upstream knows no such secret: check secret_file")

    @property
    def has_lost_key(self) -> bool:
        """Whether the keys have changed so that the replica must connect again."""
        return self._registry.keys.has_lost(self.access, self._key, self._connection.certified_name)

    @property
    def _certificate_access(self) -> Access | None:
        name = self._connection.certified_name
        return None if name is None else self._registry.keys.access_by_certificate(name)


def make_welcome(registry: ReplicaRegistry, access: Access) -> native.Welcome:
    """Return this daemon's identity, role, history and position. `GET /v1/replication` sends it too.

    Of the streams that a filtered copy holds, only those that the peer may see are named.
    """
    log = registry.log
    passed = (native.CHANNEL,) if _passes_channel(registry, access) else ()
    return native.Welcome(
        history=log.history,
        uuid=log.uuid,
        instance=registry.settings.instance_name,
        server_name=registry.settings.server_name_of(log.notes),
        role=registry.roles.role,
        position=log.position,
        trimmed_upto=log.head.trimmed_upto.serial,
        filter=registry.publisher.read_gate.filter.narrowed(access.streams),
        address=str(registry.roles.address()),
        primary=str(registry.roles.primary),
        version=native.VERSION,
        capabilities=(*native.OWN_CAPABILITIES, *passed),
        tables=tuple(sorted(name for name in log.table_streams if access.sees(name))),
        floor=log.head.floor,
        path=() if registry.roles.replica is None else registry.roles.replica.path,
    )


def _passes_channel(registry: ReplicaRegistry, access: Access) -> bool:
    """Whether the replica may join the channel of this daemon."""
    if not registry.channel().is_served:
        return False
    return not any(missing_right(access, command_operation(one)) for one in (native.Channel, native.Publish))
