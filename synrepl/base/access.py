"""Access control: keys and their rights."""

import hmac
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

import msgspec

from synrepl.base.key_authority import AllKeysCount, IKeyAuthority
from synrepl.base.key_records import KeyRecord, split_issued
from synrepl.wire.text import MAX_NAME, is_name


class Right(StrEnum):
    """An action that a key may allow."""

    READ = "read"
    """Follow; read streams, the changelog, files, leases and the status."""
    WRITE = "write"
    """Append facts, put files, invalidate caches."""
    REPLICATE = "replicate"
    """Join, subscribe and acknowledge as a replica; forward its followers' commands, and receive commands."""
    ADMINISTER = "administer"
    """Promote, resync, hand over, claim; manage leases; declare streams; read and acknowledge commands;
    invalidate caches of the watched homeserver."""


ALL_RIGHTS: Final = frozenset(Right)


UNSURE_RIGHTS: Final = frozenset({Right.READ, Right.REPLICATE})
"""What an issued key may do at a replica that cannot know whether it was revoked."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key of the keys file, or an issued one. `streams` are those it may read and write (None: all).
    `instances` are the names under which it may publish rows at the RESP port (None: any).

    Of an issued key the secret is not known here; `issued` tells it from others of its name (`KeyRecord.id`).
    If there is neither, the peer proves itself by a TLS certificate with `name` as its common name.
    """

    name: str
    secret: str | None = None
    rights: frozenset[Right] = ALL_RIGHTS
    streams: frozenset[str] | None = None
    instances: frozenset[str] | None = None
    issued: str = ""

    def __repr__(self) -> str:
        return f"<Key {self.name}>"


def names_error(names: Iterable[str], what: str) -> str:
    """Explain why these are no names of streams or instances (`what`) for a key; empty if they are.

    The text quotes none of them: in a keys file, any word may be a secret.
    """
    if all(is_name(name) and "," not in name for name in names):
        return ""
    return f"{what} must be names of 1 to {MAX_NAME} printable characters, without spaces and commas"


class IssuedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key that a primary has made, as every daemon keeps it (`replicas/issued_keys.py`).

    `streams` and `instances` are as in `Key`. `made_ms` and `revoked_ms` (None: it is valid) are Unix times
    in milliseconds.
    """

    name: str
    rights: tuple[Right, ...]
    streams: tuple[str, ...] | None = None
    instances: tuple[str, ...] | None = None
    record: KeyRecord
    made_ms: int
    revoked_ms: int | None = None

    def key(self) -> Key:
        """Return it as a key to check peers with."""
        return Key(
            name=self.name,
            rights=frozenset(self.rights),
            streams=None if self.streams is None else frozenset(self.streams),
            instances=None if self.instances is None else frozenset(self.instances),
            issued=self.record.id,
        )


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of one peer, as in its `Key`.

    `is_proven` tells whether a secret or a TLS certificate has proved who the peer is. `withheld` is why the
    peer has only `UNSURE_RIGHTS` now, although its key has more; empty unless that is so. `is_issued`: its
    key was made by a daemon, and is in no file.
    """

    name: str = ""
    rights: frozenset[Right] = ALL_RIGHTS
    streams: frozenset[str] | None = None
    instances: frozenset[str] | None = None
    is_proven: bool = False
    is_issued: bool = False
    withheld: str = ""

    @property
    def key(self) -> str | None:
        """The name of the key that the peer proved; empty for the shared secret, None if it proved none."""
        return self.name if self.is_proven else None

    @property
    def grant(self) -> tuple[object, ...]:
        """All but the words of `withheld`, which change with the time, for comparisons."""
        return self.name, self.rights, self.streams, self.instances, self.is_proven, self.is_issued

    def sees(self, stream: str) -> bool:
        """Whether the peer may see this stream."""
        return self.streams is None or stream in self.streams


LOCAL: Final = Access()
"""All rights, unproven: of TCP followers without a certificate, and of local peers if no secret is set."""

REMOTE: Final = Access(rights=frozenset({Right.READ, Right.WRITE}))
"""The rights of a peer on another machine if no secret is configured (``--insecure``)."""


class Keyring:
    """The accepted secrets: a shared one with all rights, keys of single peers, and issued keys.

    A key of the file goes before an issued one of the same name. An authority, which is given by `use`, says
    whether the issued keys may be out of date here.
    """

    def __init__(self, shared: str | None = None, keys: Iterable[Key] = ()) -> None:
        self.subscribers: list[Callable[[], object]] = []
        """Functions to call when other issued keys count."""
        self._authority: IKeyAuthority = AllKeysCount()
        self._shared = None if shared is None else Key(name="", secret=shared)
        self._by_name = {key.name: key for key in keys}
        self._issued: dict[str, tuple[Key, KeyRecord]] = {}
        self._has_issued = False

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._by_name)} keys, and {len(self._issued)} issued ones>"

    def use(self, authority: IKeyAuthority) -> None:
        """Ask this authority about issued keys from now on."""
        self._authority = authority

    @property
    def is_required(self) -> bool:
        """Whether there is a secret or a key: then HTTP clients and replicas must prove one.

        Revoked keys count: a daemon whose last key is revoked is not open to everybody.
        """
        return self.is_configured or self._has_issued

    @property
    def is_configured(self) -> bool:
        """Whether the settings name a secret or a key."""
        return self._shared is not None or bool(self._by_name)

    def find(self, secret: bytes) -> Key | None:
        """Find the key with this secret; None without one. The time does not tell which key matches.

        A daemon whose own secret is an issued key takes it as the shared secret: it is its operator's.
        """
        found = None
        for key in self._secret_keys():
            if hmac.compare_digest(secret, (key.secret or "").encode()) and found is None:
                found = key
        if found is not None:
            return found
        name, own = split_issued(secret.decode("utf-8", "replace"))
        issued, record = self._find_issued(name)
        if record is None or not record.is_of(own):
            return None
        if record.is_old:
            self._authority.old_record_shown(record.id, own)
        return issued

    def is_valid(self, key: Key) -> bool:
        """Whether a peer that has shown this key still has it, with the same rights."""
        return key == (self._find_issued(key.name)[0] if key.issued else self._configured(key.name))

    def has_lost(self, access: "Access | None", key: Key | None, certified_name: str | None) -> bool:
        """Whether a connected peer must connect again: the key that it has shown (None: none), or its
        certificate, gives other rights than `access` now."""
        if key is not None:
            return not self.is_valid(key)
        now = None if certified_name is None else self.access_by_certificate(certified_name)
        return self.is_required and access != now

    def knows_issued(self, name: str) -> bool:
        """Whether there is a valid issued key of this name."""
        return self._find_issued(name)[0] is not None

    def has_own_key(self, name: str) -> bool:
        """Whether a peer of this name has a key of its own."""
        return name in self._by_name or name in self._issued

    def named(self, name: str | None) -> Key | None:
        """The key of this name (empty: the shared secret); None without it."""
        return None if name is None else self._configured(name) or self._find_issued(name)[0]

    def access(self, key: Key) -> Access:
        """The rights of a peer that has proved this key, as far as its revocation would be known here."""
        return access_of(key, self._authority.doubt() if key.issued else "")

    def access_by_certificate(self, name: str) -> "Access | None":
        """The rights of a peer by the common name of its TLS certificate; None if that is no proof.

        Without a secret and without keys, every certificate that the CA has signed gives all rights.
        """
        if not self.is_required:
            return Access(name=name, is_proven=True)
        key = self._by_name.get(name)
        return None if key is None or key.secret is not None else self.access(key)

    def replace(self, other: "Keyring") -> None:
        """Take the configured keys of `other`; those that are missing there are revoked."""
        self._shared, self._by_name = other._shared, other._by_name

    def replace_issued(self, keys: Iterable[IssuedKey]) -> None:
        """Take these issued keys, in place of the former ones; revoked ones are not accepted."""
        found = list(keys)
        self._issued = {one.name: (one.key(), one.record) for one in found if one.revoked_ms is None}
        self._has_issued = bool(found)
        for subscriber in self.subscribers:
            subscriber()

    def _find_issued(self, name: str) -> tuple[Key | None, KeyRecord | None]:
        return (None, None) if name in self._by_name else self._issued.get(name, (None, None))

    def _configured(self, name: str) -> Key | None:
        return self._by_name.get(name) if name else self._shared

    def _secret_keys(self) -> list[Key]:
        configured = [*([] if self._shared is None else [self._shared]), *self._by_name.values()]
        return [key for key in configured if key.secret is not None]


def access_of(key: Key, doubt: str = "") -> Access:
    """The rights of a peer that has proved this key; if there is a `doubt`, only those of `UNSURE_RIGHTS`."""
    rights, withheld = key.rights, ""
    if doubt and not rights <= UNSURE_RIGHTS:
        rights = rights & UNSURE_RIGHTS
        left = " and ".join(right for right in Right if right in rights)
        withheld = (
            f"{doubt}, and the key {key.name} may have been revoked meanwhile: for now it may"
            f" {f'only {left}' if left else 'do nothing'}"
        )
    return Access(
        name=key.name,
        rights=rights,
        streams=key.streams,
        instances=key.instances,
        is_proven=True,
        is_issued=bool(key.issued),
        withheld=withheld,
    )
