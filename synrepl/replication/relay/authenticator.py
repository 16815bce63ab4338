"""Authenticator: the upstream's part of the handshake with a replica (HELLO, CHALLENGE, AUTH, WELCOME)."""

import msgspec
from msgspec import UNSET

from synrepl.ports.access import LOCAL, REMOTE, Access, Key
from synrepl.ports.proofs import IProofs
from synrepl.ports.rights import command_operation, refusal
from synrepl.replication.relay.handshake import (
    PRIMARY_SIDE,
    REPLICA_SIDE,
    Greetings,
    line_of_upstream,
    make_welcome,
    nonce,
    proof,
    proves,
    record_key,
)
from synrepl.replication.relay.interfaces import RelayConnection
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.replication.roles.messages import REPLICA
from synrepl.wire import native
from synrepl.wire.text import identity_error, printable


class Authenticator:
    """Finds out who a replica is, and proves to it that this daemon knows the secret too.

    A replica proves the issued key that it names, or the key of its name, or has a TLS certificate that is
    registered as a key. Without keys, replicas of this machine have all rights, and others those of a
    replica.
    """

    def __init__(self, registry: ReplicaRegistry, connection: RelayConnection) -> None:
        self.greeting = native.Hello(uuid="", name="", nonce="")
        self.access: Access = REMOTE
        self._registry = registry
        self._connection = connection
        self._greetings = Greetings(b"", b"")
        self._key: Key | None = None
        """The key that the replica has proved."""
        self._proofs: IProofs | None = None

    def challenge(self, greeting: native.Hello) -> native.Refused | None:
        """Answer HELLO with CHALLENGE, or return why the replica is refused."""
        if greeting.version < 1 or not greeting.uuid or not greeting.nonce:
            return native.refusal("version", "the handshake lacks a version, a uuid or a nonce")
        if why := identity_error(greeting.uuid, greeting.name, greeting.address):
            return native.refusal("bad_name", why)
        self.greeting = greeting
        keys = self._registry.keys
        salt = keys.salt(greeting.key)
        challenge = native.Challenge(
            nonce=nonce(),
            proof=self._certificate_access is None and keys.is_required,
            version=native.SALTED if salt else native.VERSION,
            salt=salt or UNSET,
        )
        self._greetings = Greetings(
            hello=self._connection.received_line(native.Hello), challenge=line_of_upstream(challenge)
        )
        self._connection.send(challenge)
        return None

    def check(self, message: native.Auth) -> native.Refused | None:
        """Check AUTH and note the replica's rights, or return why it is refused."""
        keys = self._registry.keys
        key = self._find_key()
        # A replica that only shows a certificate proves no secret, and writes no records.
        proofs = None if key is None or not message.proof else key.proofs()
        is_proven = proofs is not None and proves(message.proof, proofs, REPLICA_SIDE, self._greetings)
        self._proofs = proofs if is_proven else None
        if (access := self._certificate_access) is not None:
            self.access = access
        elif not keys.is_required:
            self.access = LOCAL if self._connection.is_local else REMOTE
        elif not is_proven:
            return self._unproven(key)
        else:
            assert key is not None
            self.access, self._key = keys.access(key), key
        if why := refusal(self.access, command_operation(native.Auth)):
            return native.refusal("no_rights", why)
        # Here already: an authenticated connection counts as the presence of this uuid.
        return self._registry.owner_refusal(self.greeting.uuid, self.access, name=self.greeting.listed_name)

    def _unproven(self, key: Key | None) -> native.Refused:
        """The refusal of a peer that should have proved this key."""
        issued = self.greeting.key
        if issued and not self._registry.keys.salt(issued):
            # A new key may be on its way to a replica.
            why = f"there is no key {printable(issued)} at the upstream, or it was revoked"
            return native.refusal("no_rights", why, retryable=self._registry.roles.role == REPLICA)
        if key is None:
            name = printable(self.greeting.name)
            why = f"there is no key {name} in keys_file of the upstream, or it was revoked"
            return native.refusal("no_rights", why)
        return native.refusal("no_rights", "the proof is wrong: the upstream has another secret")

    def welcome(self) -> None:
        """Send WELCOME. After it, without TLS, both ends send records if there is a secret."""
        proofs = self._proofs
        welcome = make_welcome(self._registry, self.access, proof="")
        if proofs is None:
            self._connection.send(welcome)
            return
        own_proof = proof(proofs, PRIMARY_SIDE, self._greetings, line_of_upstream(welcome))
        self._connection.send(msgspec.structs.replace(welcome, proof=own_proof))
        if not self._connection.is_encrypted:
            self._connection.read_records(record_key(proofs, REPLICA_SIDE, self._greetings))
            self._connection.write_records(record_key(proofs, PRIMARY_SIDE, self._greetings))

    @property
    def has_lost_key(self) -> bool:
        """Whether the keys have changed so that the replica must authenticate again."""
        keys = self._registry.keys
        if self._key is not None:
            return self._key != self._find_key()
        return keys.is_required and self.access != self._certificate_access

    def _find_key(self) -> Key | None:
        return self._registry.keys.for_peer(self.greeting.name, self.greeting.key)

    @property
    def _certificate_access(self) -> Access | None:
        name = self._connection.certified_name
        return None if name is None else self._registry.keys.access_by_certificate(name)
