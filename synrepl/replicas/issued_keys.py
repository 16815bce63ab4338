"""Issued keys: the primary makes and revokes them, and every daemon below it checks them.

They are not facts of the log. Whoever reads the log verifies its chain of digests, and so must see every
fact, archives included; what only daemons may see cannot be a part of it. The keys are a note beside the log.
It travels from an upstream to its replicas alone, filtered or not, as a whole: after SUBSCRIBED unless the
replica has the same, and at each change. So a revocation reaches a replica of a replica as fast as a fact.

A revocation is never taken back: who has heard of it refuses the key, whatever the primary says. So keys are
told apart by the ids of their records, since a name can be given again, and revoked ones that the upstream
does not know are kept. If a promotion lost a revocation, the daemon that knows it lists the key (`unrevoked`)
until it is revoked again.

A key, or its revocation, goes to a replica in these steps:

1. `IssuedKeys.add` stores the keys on the primary, and calls its subscribers.
2. `ReplicaRegistry._on_keys` (`relay/replica_registry.py`) is one of them: `Relay.send_keys`
   (`relay/relay.py`) sends the block to each replica. A relay also sends it after SUBSCRIBED, unless the
   replica has the same.
3. `NativeConversation` (`native_client.py`) reads the block at the replica, and `Replica`
   (`replica/replica.py`) calls `take_keys`. The part of the room (`part.py`) has set that to
   `IssuedKeys.take`.
4. `take` stores what is new, gives it to the `Keyring` (`replace_issued` of `base/access.py`), where the next
   request looks its key up (`Keyring.find`), and calls the subscribers: step 2 for the next replica.

A replica that has not heard from its upstream for too long doubts its keys
(`ReplicaRegistry._doubt_of_keys`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from hashlib import sha256
from typing import Final

import msgspec
from msgspec.structs import replace
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from synrepl.base.access import IssuedKey, Keyring, Right, names_error
from synrepl.base.interfaces import IClock
from synrepl.base.key_authority import AllKeysCount
from synrepl.base.key_records import make_record, make_secret
from synrepl.base.tasks import Tasks
from synrepl.errors import ConfigError, RemoteProtocolError, StorageError
from synrepl.storage.log import Log
from synrepl.wire.text import is_name

MAX_KEYS: Final = 500
"""The largest number of issued keys that are kept. Of more, the first that were revoked are forgotten."""

MAX_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of all keys that an upstream may send; half of that may be made."""

_decoder: Final = msgspec.json.Decoder(IssuedKey)


def keys_block(keys: Iterable[IssuedKey]) -> bytes:
    """Encode all issued keys as a block for replicas."""
    # Imported on use: a daemon without replicas has no blocks.
    from synrepl.replicas.wire.blocks import encode_block

    lines = [msgspec.json.encode(one) + b"\n" for one in keys]
    return encode_block("keys", len(lines), b"".join(lines))


def read_keys_block(data: bytes) -> list[IssuedKey]:
    """Decode the block of an upstream. Raises `RemoteProtocolError`."""
    if len(data) > MAX_BYTES:
        raise RemoteProtocolError(
            f"the upstream sent {len(data)} bytes of keys; at most {MAX_BYTES} are valid"
        )
    try:
        keys = [_decoder.decode(line) for line in data.splitlines()]
        for one in keys:
            one.record.check()
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocolError("the upstream sent an issued key that cannot be read") from error
    if len(keys) > MAX_KEYS or not all(is_name(one.name) for one in keys):
        raise RemoteProtocolError("the upstream sent too many issued keys, or one with a bad name")
    return keys


@dataclass(eq=False, repr=False)
class IssuedKeys:
    """The issued keys of a daemon, in its log's notes and in its keyring.

    `refusal` returns why this daemon cannot change them now: it is no primary, or hands over. `doubt` returns
    why they may be out of date here (`IKeyAuthority`). `subscribers` are called after each change.
    """

    _logger = Logger()
    log: Log
    keyring: Keyring
    clock: IClock
    tasks: Tasks
    _: KW_ONLY
    refusal: Callable[[], StorageError | None] = lambda: None
    doubt: Callable[[], str] = AllKeysCount().doubt

    def __post_init__(self) -> None:
        self.subscribers: list[Callable[[], object]] = []
        self._lock = DeferredLock()
        self._keys: dict[str, IssuedKey] = {}
        """By the ids of their records."""
        self.digest = ""
        """Tells two sets of issued keys apart; empty without keys."""
        self._taken = ""
        self._unrevoked: tuple[str, ...] = ()
        self.unrevoked_since = 0.0
        """When the first of `unrevoked` was noticed, in Unix seconds."""
        self._renewing: set[str] = set()
        text = self.log.notes.get("keys")
        self._apply(() if text is None else msgspec.json.decode(text, type=list[IssuedKey]))

    @property
    def all(self) -> Sequence[IssuedKey]:
        """All issued keys, revoked ones too, in the order in which they were made."""
        return list(self._keys.values())

    @property
    def upstream_digest(self) -> str:
        """The digest of the set that the upstream sent last; until it sends one, that of the own set."""
        return self._taken or self.digest

    @property
    def unrevoked(self) -> Sequence[str]:
        """The names of keys that are revoked here and not at the upstream, which lost that."""
        return self._unrevoked

    def lead(self) -> None:
        """Stop following an upstream's keys: this daemon is the primary, and decides which keys count."""
        self._taken, self._unrevoked = "", ()

    def revoked(self) -> dict[str, str]:
        """The names of the revoked keys, by the ids of their records."""
        return {issued: one.name for issued, one in self._keys.items() if one.revoked_ms is not None}

    async def add(
        self,
        name: str,
        rights: Iterable[Right],
        streams: Collection[str] | None = None,
        instances: Collection[str] | None = None,
    ) -> tuple[IssuedKey, str]:
        """Make a key. Returns it with its secret, as ``NAME.SECRET``, which is kept nowhere.

        Raises `ConfigError` for a bad name of the key, a stream or an instance, a taken name, too many keys,
        or at a daemon without a secret: it would refuse everybody else from now on. Raises `StorageError`.
        """
        async with self._lock:
            self._check_open()
            if not is_name(name):
                raise ConfigError("a key needs a name: one word of up to 255 printable characters")
            if why := names_error(streams or (), "streams") or names_error(instances or (), "instances"):
                raise ConfigError(why)
            if not self.keyring.is_configured:
                raise ConfigError(
                    "this daemon has no secret: with an issued key it would refuse everybody else; configure"
                    " secret_file or keys_file first"
                )
            if self.keyring.has_own_key(name):
                raise ConfigError(f"there is a key {name} already: choose another name, or revoke it first")
            if sum(one.revoked_ms is None for one in self.all) >= MAX_KEYS:
                raise ConfigError(f"{MAX_KEYS} keys are valid already, the most that there may be")
            secret = make_secret()
            key = IssuedKey(
                name=name,
                rights=tuple(sorted(rights)),
                streams=None if streams is None else tuple(sorted(set(streams))),
                instances=None if instances is None else tuple(sorted(set(instances))),
                record=make_record(secret),
                made_ms=self._now_ms(),
            )
            if len(msgspec.json.encode([*self.all, key])) > MAX_BYTES // 2:
                raise ConfigError(
                    "the keys name too many streams and instances: all together they must fit 4 MiB"
                )
            await self._store([*self.all, key])
            return key, f"{name}.{secret}"

    async def revoke(
        self, name: str, *, may: Callable[[IssuedKey], bool] = lambda key: True
    ) -> IssuedKey | None:
        """Revoke a key for good, if the asker `may`. None without a valid one of this name that it may.

        Raises `StorageError`.
        """
        async with self._lock:
            self._check_open()
            known = next((one for one in self.all if one.name == name and one.revoked_ms is None), None)
            if known is None or not may(known):
                return None
            revoked = replace(known, revoked_ms=self._now_ms())
            await self._store([revoked if one is known else one for one in self.all])
            return revoked

    async def take(self, theirs: Sequence[IssuedKey]) -> None:
        """Take the keys of the upstream; what was revoked here stays revoked. Raises `StorageError`."""
        async with self._lock:
            revoked = {issued: one for issued, one in self._keys.items() if one.revoked_ms is not None}
            merged = [
                one if one.revoked_ms is not None else revoked.get(one.record.id, one) for one in theirs
            ]
            known = {one.record.id for one in theirs}
            kept = [*merged, *(one for issued, one in revoked.items() if issued not in known)]
            if kept != self.all:
                await self._store(kept)
            self._taken = _digest(theirs)
            unrevoked = tuple(one.name for one, their in zip(merged, theirs, strict=True) if one is not their)
            if unrevoked != self._unrevoked:
                self.unrevoked_since = self.unrevoked_since if self._unrevoked else self.clock.seconds()
                self._unrevoked = unrevoked
                if unrevoked:
                    why = "keys that were revoked here are valid at the upstream, which lost that: {names}"
                    self._logger.error(why, names=", ".join(unrevoked))

    async def take_revoked(self, issued: Collection[str]) -> list[str]:
        """Revoke the keys with these ids, which other daemons know to be revoked. Returns their names.

        Raises `StorageError`.
        """
        async with self._lock:
            now_ms = self._now_ms()
            found = [one for one in self.all if one.revoked_ms is None and one.record.id in issued]
            if found:
                await self._store(
                    [replace(one, revoked_ms=now_ms) if one in found else one for one in self.all]
                )
            return [one.name for one in found]

    def old_record_shown(self, issued: str, secret: str) -> None:
        """Renew the record of this key, if this daemon may."""
        if self.refusal() is None and issued not in self._renewing:
            self._renewing.add(issued)
            self.tasks.start(self._renew(issued, secret), "renewing the record of a key")

    async def _renew(self, issued: str, secret: str) -> None:
        """Replace a record of release 26.11 or before: the holder of the key has shown its secret."""
        try:
            async with self._lock:
                known = self._keys.get(issued)
                if known is None or known.revoked_ms is not None or self.refusal() is not None:
                    return
                renewed = replace(known, record=make_record(secret, salt=issued))
                await self._store([renewed if one is known else one for one in self.all])
                self._logger.info("the record of the key {name} has the form of today now", name=known.name)
        finally:
            self._renewing.discard(issued)

    def _check_open(self) -> None:
        if (error := self.refusal()) is not None:
            raise error

    async def _store(self, keys: Sequence[IssuedKey]) -> None:
        kept = _without_oldest_revoked(keys)
        await self.log.note(keys=msgspec.json.encode(kept).decode() if kept else None)
        self._apply(kept)
        for subscriber in self.subscribers:
            subscriber()

    def _apply(self, keys: Iterable[IssuedKey]) -> None:
        self._keys = {one.record.id: one for one in keys}
        self.digest = _digest(self.all)
        self.keyring.replace_issued(self.all)

    def _now_ms(self) -> int:
        return round(self.clock.seconds() * 1000)


def _without_oldest_revoked(keys: Sequence[IssuedKey]) -> list[IssuedKey]:
    excess = len(keys) - MAX_KEYS
    if excess <= 0:
        return list(keys)
    revoked = sorted((one.revoked_ms, one.record.id) for one in keys if one.revoked_ms is not None)
    forgotten = {issued for _, issued in revoked[:excess]}
    return [one for one in keys if one.record.id not in forgotten]


def _digest(keys: Sequence[IssuedKey]) -> str:
    return sha256(msgspec.json.encode(keys)).hexdigest() if keys else ""
