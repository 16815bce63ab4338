"""Handlers of issued keys: what there is, and new and revoked ones."""

from collections.abc import Iterable

import msgspec

from synrepl.base.access import Access, IssuedKey, Right
from synrepl.errors import ConfigError
from synrepl.replicas.http.served_replicas import replicas_of
from synrepl.replicas.routes import ADD_KEY, KEYS, REVOKE_KEY
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.wire.text import printable

DEFAULT_RIGHTS = (Right.READ, Right.WRITE, Right.REPLICATE)
"""The rights of a new key unless others are named, as in the keys file."""


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a new key, its rights, and the streams that it may read and write (None: all).

    `instances` are the names under which it may publish rows at the RESP port (None: any).
    """

    name: str
    rights: list[Right] | None = None
    streams: list[str] | None = None
    instances: list[str] | None = None


class KeyFields(msgspec.Struct, frozen=True):
    """An issued key. `made` and `revoked` are Unix times in seconds (None: it is valid)."""

    name: str
    rights: list[Right]
    streams: list[str] | None
    instances: list[str] | None
    made: float
    revoked: float | None


class KeysAnswer(msgspec.Struct, frozen=True):
    """The issued keys, revoked ones too. Those in `lost` were revoked here and are valid at the upstream."""

    keys: list[KeyFields]
    lost: list[str]


class AddedKey(msgspec.Struct, frozen=True):
    """The new key. Its `secret` is shown this once."""

    key: KeyFields
    secret: str


@handles(KEYS)
async def list_all(call: Call) -> KeysAnswer:
    """List the issued keys that the peer could have made, in the order in which they were made."""
    issued = replicas_of(call).registry.issued
    seen = [one for one in issued.all if not _excess(call.access, one.rights, one.streams, one.instances)]
    names = {one.name for one in seen}
    return KeysAnswer(list(map(_fields, seen)), [name for name in issued.unrevoked if name in names])


@handles(ADD_KEY)
async def add(call: Call, body: KeyBody) -> AddedKey:
    """Make a key. Raises `ApiError` if it would be allowed more than the peer's own key."""
    rights = set(DEFAULT_RIGHTS if body.rights is None else body.rights)
    if Right.REPLICATE in rights:
        rights.add(Right.READ)
    if not rights:
        raise ApiError("bad_request", f"a key needs a right: one or more of {', '.join(Right)}")
    if why := _excess(call.access, rights, body.streams, body.instances):
        raise ApiError("no_rights", why)
    try:
        key, secret = await replicas_of(call).registry.issued.add(
            body.name, rights, body.streams, body.instances
        )
    except ConfigError as error:
        raise ApiError("key_refused", str(error)) from error
    return AddedKey(_fields(key), secret)


@handles(REVOKE_KEY)
async def revoke(call: Call) -> KeyFields:
    """Revoke a key that the peer could have made, and disconnect the peers that have proved it."""
    name, own = call.path["name"], call.access
    revoked = await replicas_of(call).registry.issued.revoke(
        name, may=lambda one: not _excess(own, one.rights, one.streams, one.instances)
    )
    if revoked is None:
        # Also of a key beyond the peer's own: its name is not for the peer to know.
        why = (
            f"there is no valid issued key {printable(name)} that one's own key could have made; synrepl keys"
            " list shows them"
        )
        raise ApiError("unknown_key", why)
    return _fields(revoked)


def _excess(
    own: Access, rights: Iterable[Right], streams: Iterable[str] | None, instances: Iterable[str] | None
) -> str:
    """Why a peer may not make such a key, nor see or revoke one that exists; empty if it may."""
    if excess := sorted(set(rights) - own.rights):
        return f"a key can only be made with rights of one's own: not {excess[0]}"
    if not _is_within(streams, own.streams):
        return "a key can only be made for streams that one's own key may see"
    if not _is_within(instances, own.instances):
        return "a key can only be made for instances that one's own key may publish as"
    return ""


def _is_within(names: Iterable[str] | None, own: frozenset[str] | None) -> bool:
    return own is None or (names is not None and own.issuperset(names))


def _fields(one: IssuedKey) -> KeyFields:
    return KeyFields(
        name=one.name,
        rights=list(one.rights),
        streams=None if one.streams is None else list(one.streams),
        instances=None if one.instances is None else list(one.instances),
        made=one.made_ms / 1000,
        revoked=None if one.revoked_ms is None else one.revoked_ms / 1000,
    )
