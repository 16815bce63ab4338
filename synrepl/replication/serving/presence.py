"""SyncingUsers: the users that are syncing on each worker."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.time import Timer
from synrepl.errors import RemoteProtocolError
from synrepl.wire.commands import ClearUserSync, UserSync

EXPIRY_SECONDS: Final = 300.0
"""A worker that is silent for this long is removed together with its users."""

MAX_INSTANCES: Final = 1_000
"""Instances that one connection may speak for. A worker speaks for one; a bridge speaks for each worker
behind it, and the largest deployments have some hundreds.
"""

MAX_USERS: Final = 200_000
"""Users (with devices) that one connection may hold: twice as many as a large sync worker has."""

MAX_ALL_INSTANCES: Final = 20_000
MAX_ALL_USERS: Final = 1_000_000
"""The same for all connections together: some 200 MiB. Beyond either limit the longest waiting instance
without a connection is dropped, and else the connection that holds the most: others are not affected.
"""

MAX_DETACHED_USERS: Final = 500_000
"""Users of all instances that wait for their connection to come back. Beyond this the longest waiting
instance is dropped, so that repeated reconnects cannot fill the memory.
"""

MAX_NAME: Final = 512
"""Characters in the name of an instance, a user or a device. A user id has at most 255."""


class SyncingUser(msgspec.Struct, frozen=True):
    """A user started (`is_syncing`) or stopped syncing, on all workers taken together."""

    user_id: str
    device_id: str | None
    is_syncing: bool
    last_sync_ms: int


_User = tuple[str, str | None]


@dataclass(eq=False, repr=False, slots=True)
class _Connection:
    """A connection and the workers it speaks for. `user_count` is the sum of their users."""

    last_active_at: float
    user_count: int = 0
    workers: dict[str, "_Worker"] = field(default_factory=dict)


class _Worker:
    """One worker with its users, at least one. `owner` is its last connection, None once that is closed."""

    __slots__ = ("last_active_at", "name", "owner", "users")

    def __init__(self, name: str, owner: _Connection) -> None:
        self.name = name
        self.users: dict[_User, int] = {}
        self.last_active_at = owner.last_active_at
        self.owner: _Connection | None = owner


class SyncingUsers:
    """Tracks the users syncing on each worker and notifies subscribers when a user starts or stops.

    A worker is an instance id if the release has one (docs/reference/peers.md#tcp-commands). Otherwise the
    connection counts as the worker, and its users end with it. An instance's users end with CLEAR_USER_SYNC.
    All end after `EXPIRY_SECONDS` without activity of the worker and its last connection. The cost of
    USER_SYNC does not depend on the number of users, workers or connections.
    """

    _logger = Logger()

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._connections: dict[object, _Connection] = {}
        self._counts: dict[_User, int] = {}
        """The number of workers on which each user is syncing."""
        self._detached: dict[str, _Worker] = {}
        """Workers whose connection is closed, in the order in which they lost it."""
        self._detached_users = 0
        self._user_count = 0
        """Users of all workers."""
        self.subscribers: list[Callable[[SyncingUser], None]] = []
        """Functions that are called for each user that starts or stops."""
        self._timer = Timer(clock, self._expire)
        self._limited = LimitedLogger(self._logger, clock)

    def users(self) -> set[str]:
        """The ids of all users that are syncing now."""
        return {user_id for user_id, _ in self._counts}

    def current(self) -> list[tuple[str, str | None, int]]:
        """All syncing users: user id, device id, and the number of workers they sync on."""
        return [(user_id, device_id, count) for (user_id, device_id), count in self._counts.items()]

    def mark_active(self, connection: object) -> None:
        """Record activity of this connection, which counts for its workers too."""
        owner = self._connections.get(connection)
        if owner is not None:
            owner.last_active_at = self._clock.seconds()

    def user_sync(self, connection: object, command: UserSync) -> None:
        """Handle USER_SYNC from this connection; None is the shared channel, on which all processes speak.

        Raises RemoteProtocolError, and drops all users of the connection, if it names too many instances or
        users, or too long a name, or holds the most of them when all connections together hold too many. The
        channel has no such limits: every process of the deployment speaks there and has authenticated to the
        broker.
        """
        name = command.instance_id or f"connection {id(connection)}"
        user = (command.user_id, command.device_id)
        now = self._clock.seconds()
        worker = self._workers.get(name)
        if worker is None and not command.is_syncing:
            return
        owner = self._connections.get(connection)
        if owner is None:
            owner = self._connections[connection] = _Connection(now)
        if connection is not None and (why := _limit_exceeded(owner, worker, command)):
            self._drop_connection(connection)
            raise RemoteProtocolError(why)
        if worker is None:
            worker = self._workers[name] = _Worker(name, owner)
            owner.workers[name] = worker
        elif worker.owner is not owner:
            # Another connection speaks for this worker now.
            self._detach(worker)
            worker.owner = owner
            owner.workers[name] = worker
            owner.user_count += len(worker.users)
        worker.last_active_at = now
        if command.is_syncing:
            self._start_user(worker, owner, user, command.last_sync_ms)
        else:
            self._stop_user(worker, owner, user, command.last_sync_ms)
        self._arm()
        self._make_room(connection)

    def _make_room(self, connection: object) -> None:
        """Drop what is beyond the limits of all connections together.

        Raises RemoteProtocolError if it is what this connection holds.
        """
        while (is_named := len(self._workers) > MAX_ALL_INSTANCES) or self._user_count > MAX_ALL_USERS:
            if self._detached:
                self._drop(next(iter(self._detached)))
                continue
            held = {each: owner for each, owner in self._connections.items() if each is not None}
            if not held:
                return
            most = max(held, key=lambda each: len(held[each].workers) if is_named else held[each].user_count)
            self._drop_connection(most)
            what = f"{MAX_ALL_INSTANCES} instances" if is_named else f"{MAX_ALL_USERS} users"
            why = f"all connections together name more than {what} in USER_SYNC"
            if most is connection:
                raise RemoteProtocolError(f"{why}, and this one the most")
            self._limited.warn("{why}: dropped the users of the one that names the most", why=why)

    def _drop_connection(self, connection: object) -> None:
        for name in list(self._connections.pop(connection).workers):
            self._drop(name)

    def clear(self, command: ClearUserSync, connection: object = None) -> bool:
        """Handle CLEAR_USER_SYNC: all users of this worker have stopped.

        Pass `connection` if the command may be late: a worker that another connection speaks for by now is
        left alone. Returns False in that case.
        """
        worker = self._workers.get(command.instance_id)
        owner = None if worker is None else worker.owner
        if connection is not None and owner is not None and owner is not self._connections.get(connection):
            return False
        self._drop(command.instance_id)
        return True

    def instances_of(self, connection: object) -> list[str]:
        """The workers that this connection spoke for last, without the connection itself."""
        owner = self._connections.get(connection)
        if owner is None:
            return []
        return [name for name in owner.workers if name != f"connection {id(connection)}"]

    def commands(self) -> Iterator[tuple[object, UserSync]]:
        """Yield each open connection (None: the channel) with USER_SYNC for each of its users.

        Users that start or stop during the iteration may be left out.
        """
        for connection, owner in list(self._connections.items()):
            for name, worker in list(owner.workers.items()):
                instance = "" if name == f"connection {id(connection)}" else name
                for user, last_sync_ms in list(worker.users.items()):
                    if worker.owner is owner and user in worker.users:
                        yield (
                            connection,
                            UserSync(
                                instance_id=instance,
                                user_id=user[0],
                                device_id=user[1],
                                is_syncing=True,
                                last_sync_ms=last_sync_ms,
                            ),
                        )

    def connection_lost(self, connection: object) -> None:
        """Drop the connection's users without an instance id.

        Users of an instance are kept for a while: the instance may reconnect.
        """
        self._drop(f"connection {id(connection)}")
        owner = self._connections.pop(connection, None)
        if owner is None:
            return
        for name, worker in owner.workers.items():
            worker.last_active_at = max(worker.last_active_at, owner.last_active_at)
            worker.owner = None
            self._detached[name] = worker
            self._detached_users += len(worker.users)
        while self._detached_users > MAX_DETACHED_USERS:
            self._drop(next(iter(self._detached)))

    def stop(self) -> None:
        """Stop all timers."""
        self._limited.stop()
        self._timer.stop()

    def _start_user(self, worker: _Worker, owner: _Connection, user: _User, last_sync_ms: int) -> None:
        is_new = user not in worker.users
        worker.users[user] = last_sync_ms
        if is_new:
            owner.user_count += 1
            self._user_count += 1
            count = self._counts[user] = self._counts.get(user, 0) + 1
            if count == 1:
                self._notify(user, last_sync_ms, is_syncing=True)

    def _stop_user(self, worker: _Worker, owner: _Connection, user: _User, last_sync_ms: int) -> None:
        if worker.users.pop(user, None) is None:
            return
        owner.user_count -= 1
        self._user_count -= 1
        if not worker.users:
            del self._workers[worker.name]
            del owner.workers[worker.name]
        self._release(user, last_sync_ms)

    def _release(self, user: _User, last_sync_ms: int) -> None:
        count = self._counts[user] - 1
        if count:
            self._counts[user] = count
        else:
            del self._counts[user]
            self._notify(user, last_sync_ms, is_syncing=False)

    def _detach(self, worker: _Worker) -> None:
        if worker.owner is not None:
            worker.owner.user_count -= len(worker.users)
            del worker.owner.workers[worker.name]
        elif self._detached.pop(worker.name, None) is not None:
            self._detached_users -= len(worker.users)

    def _drop(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is None:
            return
        self._detach(worker)
        self._user_count -= len(worker.users)
        for user, last_sync_ms in worker.users.items():
            self._release(user, last_sync_ms)

    def _notify(self, user: _User, last_sync_ms: int, *, is_syncing: bool) -> None:
        if not self.subscribers:
            return
        change = SyncingUser(
            user_id=user[0], device_id=user[1], is_syncing=is_syncing, last_sync_ms=last_sync_ms
        )
        for subscriber in self.subscribers:
            subscriber(change)

    def _arm(self) -> None:
        if self._workers:
            self._timer.start(EXPIRY_SECONDS / 10)

    def _expire(self) -> None:
        limit = self._clock.seconds() - EXPIRY_SECONDS
        for worker in list(self._workers.values()):
            active_at = worker.last_active_at
            if worker.owner is not None:
                active_at = max(active_at, worker.owner.last_active_at)
            if active_at <= limit:
                self._drop(worker.name)
        self._arm()


def _limit_exceeded(owner: _Connection, worker: _Worker | None, command: UserSync) -> str:
    for name in (command.instance_id, command.user_id, command.device_id or ""):
        if len(name) > MAX_NAME:
            return f"a name in USER_SYNC exceeds {MAX_NAME} characters"
    added = 0
    if worker is None or worker.owner is not owner:
        if len(owner.workers) >= MAX_INSTANCES:
            return f"USER_SYNC names more than {MAX_INSTANCES} instances on one connection"
        added = 0 if worker is None else len(worker.users)
    if command.is_syncing and (worker is None or (command.user_id, command.device_id) not in worker.users):
        added += 1
    if added and owner.user_count + added > MAX_USERS:
        return f"USER_SYNC names more than {MAX_USERS} users on one connection"
    return ""
