"""What one transaction of a writer invalidates, as few rows as that can be said in."""

from collections.abc import Iterable
from typing import Literal

from synrepl.caches.packed import PACKED, pack
from synrepl.errors import LocalProtocolError
from synrepl.streams.catalog import CacheInvalidation

__all__ = ["Changes"]

# Real writers send no more, and a row must fit a line.
PER_ROW = 50

_STATE = "cs_cache_fake"
_HISTORY = "ph_cache_fake"
_ROOM = "dr_cache_fake"


class Changes:
    """Collects what changed; says each thing once, in the order in which it was first said.

    For workers of 1.163 and its like: earlier ones know fewer aliases.
    """

    def __init__(self) -> None:
        # What there is to say: a cache or alias, and a key (plain caches), the room (aliases) or nothing
        # (packed keys, and all of a cache). Dicts are sets with an order.
        self._said: dict[tuple[Literal["key", "all", "packed", "alias"], str, tuple[str, ...]], None] = {}
        self._users: dict[str, dict[str, None]] = {}
        self._packed: dict[str, dict[tuple[str, ...], None]] = {name: {} for name in PACKED}

    def invalidate(self, cache: str, key: tuple[str, ...]) -> None:
        """An entry of a cache no longer holds. Aliases are understood, too."""
        for argument in key:
            if not isinstance(argument, str):
                raise LocalProtocolError(f"keys are strings; of {cache}, {argument!r} is not")
        if cache == _STATE and key:
            self.state_changed(key[0], key[1:])
        elif cache == _HISTORY and len(key) == 1:
            self.history_purged(key[0])
        elif cache == _ROOM and len(key) == 1:
            self.room_deleted(key[0])
        elif cache in (_STATE, _HISTORY, _ROOM):
            raise LocalProtocolError(f"{cache} does not take a key of {len(key)} strings")
        elif cache in self._packed:
            self._said["packed", cache, ()] = None
            self._packed[cache][key] = None
        else:
            self._said["key", cache, key] = None

    def invalidate_all(self, cache: str) -> None:
        """Nothing of a cache holds any longer."""
        if cache in (_STATE, _HISTORY, _ROOM):
            raise LocalProtocolError(f"{cache} is no cache: say of which room")
        self._said["all", cache, ()] = None

    def state_changed(self, room_id: str, users: Iterable[str] = ()) -> None:
        """The state of a room moved on, and with it the membership of `users`."""
        self._said["alias", _STATE, (room_id,)] = None
        self._users.setdefault(room_id, {}).update(dict.fromkeys(users))

    def history_purged(self, room_id: str) -> None:
        """Events of a room are gone for ever."""
        self._said["alias", _HISTORY, (room_id,)] = None

    def room_deleted(self, room_id: str) -> None:
        """A room is gone."""
        self._said["alias", _ROOM, (room_id,)] = None

    def rows(self, now_ms: int) -> list[CacheInvalidation]:
        """The rows to send; they are one fact."""
        return [
            CacheInvalidation(cache_func=cache, keys=keys, invalidation_ts=now_ms)
            for kind, cache, key in self._said
            for keys in self._keys(kind, cache, key)
        ]

    def _keys(self, kind: str, cache: str, key: tuple[str, ...]) -> list[list[str] | None]:
        """The keys of each row that says this; none if something else says it already."""
        if kind == "all":
            return [None]
        if ("all", cache, ()) in self._said:
            return []
        if kind == "packed":
            texts = [pack(packed) for packed in self._packed[cache]]
            return [texts[start : start + PER_ROW] for start in range(0, len(texts), PER_ROW)]
        if kind == "alias" and cache != _ROOM:
            is_deleted = ("alias", _ROOM, key) in self._said
            users = list(self._users.get(key[0], ())) if cache == _STATE else []
            # A deleted room drops all that these drop. But readers also note whose memberships changed, which
            # only a change of state tells: with users it is said all the same.
            if is_deleted and not users:
                return []
            return [
                [*key, *users[start : start + PER_ROW]] for start in range(0, max(len(users), 1), PER_ROW)
            ]
        return [list(key)]
