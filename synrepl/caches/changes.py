"""Changes: the invalidations of one transaction, in as few rows as possible."""

from collections.abc import Iterable
from typing import Literal

from synrepl.caches.vintage import PACKED, pack
from synrepl.errors import LocalProtocolError
from synrepl.streams.catalog import CacheInvalidation

# The maximum number of keys or users in one row. Real writers send no more, and a row must fit a line.
PER_ROW = 50

_STATE = "cs_cache_fake"
_HISTORY = "ph_cache_fake"
_ROOM = "dr_cache_fake"


class Changes:
    """Collects the invalidations of one transaction, without repetitions, in the order of first mention.

    For workers of Synapse 1.163; earlier releases have fewer aliases (docs/reference/peers.md#caches).
    `invalidate` raises `LocalProtocolError` for a key with a part that is no string, or that does not fit an
    alias for rooms; `invalidate_all` for such an alias.

    >>> changes = Changes()
    >>> changes.invalidate("get_user_by_id", ("@ada:hs",))
    >>> changes.invalidate_all("get_server_keys")
    >>> changes.state_changed("!room:hs", ["@ada:hs"])
    >>> for row in changes.rows(now_ms=1_490_197_665_618):
    ...     print(row.cache_func, row.keys)
    get_user_by_id ['@ada:hs']
    get_server_keys None
    cs_cache_fake ['!room:hs', '@ada:hs']
    """

    def __init__(self) -> None:
        # A cache or alias, and its key: a room for aliases, empty for packed keys and for all of a cache. The
        # dicts are ordered sets.
        self._changes: dict[tuple[Literal["key", "all", "packed", "alias"], str, tuple[str, ...]], None] = {}
        self._users: dict[str, dict[str, None]] = {}
        self._packed: dict[str, dict[tuple[str, ...], None]] = {name: {} for name in PACKED}

    def invalidate(self, cache: str, key: tuple[str, ...]) -> None:
        """Invalidate one entry of a cache. `cache` may be an alias."""
        for argument in key:
            if not isinstance(argument, str):
                raise LocalProtocolError(f"a key of {cache} has {argument!r}: its parts must be strings")
        if cache == _STATE and key:
            self.state_changed(key[0], key[1:])
        elif cache == _HISTORY and len(key) == 1:
            self.history_purged(key[0])
        elif cache == _ROOM and len(key) == 1:
            self.room_deleted(key[0])
        elif cache in (_STATE, _HISTORY, _ROOM):
            takes = "a room and its users" if cache == _STATE else "a room"
            raise LocalProtocolError(f"a key of {cache} must be {takes}, not {len(key)} strings")
        elif cache in self._packed:
            self._changes["packed", cache, ()] = None
            self._packed[cache][key] = None
        else:
            self._changes["key", cache, key] = None

    def invalidate_all(self, cache: str) -> None:
        """Invalidate all entries of a cache."""
        if cache in (_STATE, _HISTORY, _ROOM):
            raise LocalProtocolError(f"{cache} is an alias, not a cache: invalidate it with a room")
        self._changes["all", cache, ()] = None

    def state_changed(self, room_id: str, users: Iterable[str] = ()) -> None:
        """Announce that the state of a room changed, including the membership of `users`."""
        self._changes["alias", _STATE, (room_id,)] = None
        self._users.setdefault(room_id, {}).update(dict.fromkeys(users))

    def history_purged(self, room_id: str) -> None:
        """Announce that events of a room were purged."""
        self._changes["alias", _HISTORY, (room_id,)] = None

    def room_deleted(self, room_id: str) -> None:
        """Announce that a room was deleted."""
        self._changes["alias", _ROOM, (room_id,)] = None

    def rows(self, now_ms: int) -> list[CacheInvalidation]:
        """Return the rows to send, which form one fact. `now_ms` is the Unix time in milliseconds."""
        return [
            CacheInvalidation(cache_func=cache, keys=keys, invalidation_ts=now_ms)
            for kind, cache, key in self._changes
            for keys in self._keys(kind, cache, key)
        ]

    def _keys(self, kind: str, cache: str, key: tuple[str, ...]) -> list[list[str] | None]:
        """The `keys` of the rows that announce this change; no rows if those of another change imply it."""
        if kind == "all":
            return [None]
        if ("all", cache, ()) in self._changes:
            return []
        if kind == "packed":
            texts = [pack(packed) for packed in self._packed[cache]]
            return [texts[start : start + PER_ROW] for start in range(0, len(texts), PER_ROW)]
        if kind == "alias" and cache != _ROOM:
            is_deleted = ("alias", _ROOM, key) in self._changes
            users = list(self._users.get(key[0], ())) if cache == _STATE else []
            # The alias of a deleted room implies the other two. But only that of changed state tells readers
            # whose memberships changed, so it is sent if it has users.
            if is_deleted and not users:
                return []
            return [
                [*key, *users[start : start + PER_ROW]] for start in range(0, max(len(users), 1), PER_ROW)
            ]
        return [list(key)]
