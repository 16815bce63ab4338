"""Who is syncing on which worker."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from synrepl.ports.interfaces import IClock
from synrepl.wire.commands import ClearUserSync, UserSync

__all__ = ["EXPIRY_SECONDS", "Syncing", "SyncingUsers"]

EXPIRY_SECONDS: Final = 300.0
"""A worker that says nothing for so long is gone, and its users with it (facts: the TCP wire, 12)."""


class Syncing(msgspec.Struct, frozen=True):
    """A user started (`is_syncing`) or stopped syncing, on all workers taken together."""

    user_id: str
    device_id: str | None
    is_syncing: bool
    last_sync_ms: int


_User = tuple[str, str | None]


class SyncingUsers:
    """Keeps, for each worker, the users syncing there, and tells watchers when one starts or stops.

    A worker is an instance id where the release has one; else the connection itself is, and losing the
    connection ends it. An instance's users end by CLEAR_USER_SYNC, or when neither it nor a connection that
    spoke for it was heard for `EXPIRY_SECONDS`.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._workers: dict[str, dict[_User, int]] = {}
        self._heard: dict[str, float] = {}
        self._speakers: dict[object, set[str]] = {}
        self._watchers: list[Callable[[Syncing], None]] = []
        self._timer: Any = None

    def watch(self, watcher: Callable[[Syncing], None]) -> None:
        """Tell `watcher` of each user who starts or stops."""
        self._watchers.append(watcher)

    def users(self) -> set[str]:
        """Everybody who is syncing now."""
        return {user_id for users in self._workers.values() for user_id, _ in users}

    def heard_from(self, connection: object) -> None:
        """This connection is alive, and so are the workers it speaks for."""
        for worker in self._speakers.get(connection, ()):
            self._heard[worker] = self._clock.seconds()

    def user_sync(self, connection: object, command: UserSync) -> None:
        """USER_SYNC came in on this connection."""
        worker = command.instance_id or f"connection {id(connection)}"
        users = self._workers.setdefault(worker, {})
        self._speakers.setdefault(connection, set()).add(worker)
        self._heard[worker] = self._clock.seconds()
        user = (command.user_id, command.device_id)
        before = self._is_syncing(user)
        if command.is_syncing:
            users[user] = command.last_sync_ms
        else:
            users.pop(user, None)
        self._tell_change(user, before, command.last_sync_ms)
        self._arm()

    def clear(self, command: ClearUserSync) -> None:
        """CLEAR_USER_SYNC: nobody syncs on this worker any more."""
        self._drop(command.instance_id)

    def connection_lost(self, connection: object) -> None:
        """The connection is gone: so are the users it alone spoke for; an instance's wait for it to come
        back."""
        self._speakers.pop(connection, None)
        self._drop(f"connection {id(connection)}")

    def stop(self) -> None:
        """Stop waiting for anything."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _is_syncing(self, user: _User) -> bool:
        return any(user in users for users in self._workers.values())

    def _drop(self, worker: str) -> None:
        users = self._workers.pop(worker, {})
        self._heard.pop(worker, None)
        for user, last_sync_ms in users.items():
            self._tell_change(user, True, last_sync_ms)

    def _tell_change(self, user: _User, before: bool, last_sync_ms: int) -> None:
        is_syncing = self._is_syncing(user)
        if before == is_syncing:
            return
        change = Syncing(user_id=user[0], device_id=user[1], is_syncing=is_syncing, last_sync_ms=last_sync_ms)
        for watcher in self._watchers:
            watcher(change)

    def _arm(self) -> None:
        if self._timer is None and self._heard:
            self._timer = self._clock.callLater(EXPIRY_SECONDS / 10, self._expire)

    def _expire(self) -> None:
        self._timer = None
        limit = self._clock.seconds() - EXPIRY_SECONDS
        for worker in [worker for worker, heard in self._heard.items() if heard <= limit]:
            self._drop(worker)
        self._arm()
