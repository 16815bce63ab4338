"""Who is syncing on which worker."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.ports.interfaces import IClock
from synrepl.wire.commands import ClearUserSync, UserSync

__all__ = [
    "EXPIRY_SECONDS",
    "MAX_INSTANCES",
    "MAX_NAME",
    "MAX_USERS",
    "MAX_WAITING",
    "SyncingUser",
    "SyncingUsers",
]

EXPIRY_SECONDS: Final = 300.0
"""A worker that says nothing for so long is gone, and its users with it."""

MAX_INSTANCES: Final = 1_000
"""Instances that one connection may speak for. A worker speaks for one; a bridge speaks for each worker
behind it, and the largest deployments have some hundreds."""

MAX_USERS: Final = 200_000
"""Users (with devices) that one connection may hold: twice what a large sync worker has."""

MAX_WAITING: Final = 500_000
"""Users of instances that wait for their connection to come back, all together. Beyond it the instance that
has waited longest is dropped, so that reconnecting again and again cannot fill the memory."""

MAX_NAME: Final = 512
"""Characters in the name of an instance, a user or a device. A user id has at most 255."""


class SyncingUser(msgspec.Struct, frozen=True):
    """A user started (`is_syncing`) or stopped syncing, on all workers taken together."""

    user_id: str
    device_id: str | None
    is_syncing: bool
    last_sync_ms: int


_User = tuple[str, str | None]


class _Speaker:
    """A connection, and the workers it speaks for. `held` is the sum of their users."""

    __slots__ = ("heard", "held", "workers")

    def __init__(self, heard: float) -> None:
        self.heard = heard
        self.workers: dict[str, _Worker] = {}
        self.held = 0


class _Worker:
    """The users of one worker, at least one, and the connection that spoke for it last, while it is open."""

    __slots__ = ("heard", "name", "speaker", "users")

    def __init__(self, name: str, speaker: _Speaker) -> None:
        self.name = name
        self.users: dict[_User, int] = {}
        self.heard = speaker.heard
        self.speaker: _Speaker | None = speaker


class SyncingUsers:
    """Keeps, for each worker, the users syncing there, and tells watchers when one starts or stops.

    A worker is an instance id where the release has one; else the connection itself is, and losing the
    connection ends it. An instance's users end by CLEAR_USER_SYNC, or when neither it nor the connection that
    spoke for it last was heard for `EXPIRY_SECONDS`. The work for one command does not grow with the number
    of users, workers or connections.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._speakers: dict[object, _Speaker] = {}
        self._counts: dict[_User, int] = {}
        """On how many workers each user is syncing."""
        self._waiting: dict[str, _Worker] = {}
        """Workers whose connection is gone, the one that waits longest first."""
        self._waiting_users = 0
        self._watchers: list[Callable[[SyncingUser], None]] = []
        self._timer: Any = None

    def watch(self, watcher: Callable[[SyncingUser], None]) -> None:
        """Tell `watcher` of each user who starts or stops."""
        self._watchers.append(watcher)

    def users(self) -> set[str]:
        """Everybody who is syncing now."""
        return {user_id for user_id, _ in self._counts}

    def now(self) -> list[tuple[str, str | None, int]]:
        """The same with their devices, and on how many workers."""
        return [(user_id, device_id, count) for (user_id, device_id), count in self._counts.items()]

    def heard_from(self, connection: object) -> None:
        """This connection is alive, and so are the workers it speaks for."""
        speaker = self._speakers.get(connection)
        if speaker is not None:
            speaker.heard = self._clock.seconds()

    def user_sync(self, connection: object, command: UserSync) -> None:
        """USER_SYNC came in on this connection; None is the shared channel, where all processes speak.

        Raises RemoteProtocolError if the connection names more instances or users than it may; all that it
        said is dropped then. The channel has no such bound: every process of the deployment speaks there, and
        has proved itself to the broker.
        """
        name = command.instance_id or f"connection {id(connection)}"
        user = (command.user_id, command.device_id)
        now = self._clock.seconds()
        worker = self._workers.get(name)
        if worker is None and not command.is_syncing:
            return
        speaker = self._speakers.get(connection)
        if speaker is None:
            speaker = self._speakers[connection] = _Speaker(now)
        if connection is not None and (why := _excess(speaker, worker, command)):
            self._drop_all(connection)
            raise RemoteProtocolError(why)
        if worker is None:
            worker = self._workers[name] = _Worker(name, speaker)
            speaker.workers[name] = worker
        elif worker.speaker is not speaker:
            self._take_over(worker, speaker)
        worker.heard = now
        if command.is_syncing:
            self._start(worker, speaker, user, command.last_sync_ms)
        else:
            self._end(worker, speaker, user, command.last_sync_ms)
        self._arm()

    def clear(self, command: ClearUserSync, connection: object = None) -> bool:
        """CLEAR_USER_SYNC: nobody syncs on this worker any more.

        A `connection` is named where the command may be late: the worker may speak on another one by now, and
        is left alone then. Returns whether it was dropped, or not known.
        """
        worker = self._workers.get(command.instance_id)
        speaker = None if worker is None else worker.speaker
        if connection is not None and speaker is not None and speaker is not self._speakers.get(connection):
            return False
        self._drop(command.instance_id)
        return True

    def instances_of(self, connection: object) -> list[str]:
        """The workers that this connection spoke for last, but for the connection itself."""
        speaker = self._speakers.get(connection)
        if speaker is None:
            return []
        return [name for name in speaker.workers if name != f"connection {id(connection)}"]

    def said(self) -> Iterator[tuple[object, UserSync]]:
        """Who is syncing, as the commands that open connections said it. Users who come and go meanwhile may
        be left out."""
        for connection, speaker in list(self._speakers.items()):
            for name, worker in list(speaker.workers.items()):
                instance = "" if name == f"connection {id(connection)}" else name
                for user, last_sync_ms in list(worker.users.items()):
                    if worker.speaker is speaker and user in worker.users:
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
        """The connection is gone, and the users with it that have no other name than the connection; the
        users of an instance wait for it to come back."""
        self._drop(f"connection {id(connection)}")
        speaker = self._speakers.pop(connection, None)
        if speaker is None:
            return
        for name, worker in speaker.workers.items():
            worker.heard = max(worker.heard, speaker.heard)
            worker.speaker = None
            self._waiting[name] = worker
            self._waiting_users += len(worker.users)
        while self._waiting_users > MAX_WAITING:
            self._drop(next(iter(self._waiting)))

    def stop(self) -> None:
        """Stop waiting for anything."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _drop_all(self, connection: object) -> None:
        """Forget all that this connection said."""
        speaker = self._speakers.pop(connection, None)
        for name in list(speaker.workers) if speaker is not None else ():
            self._drop(name)

    def _start(self, worker: _Worker, speaker: _Speaker, user: _User, last_sync_ms: int) -> None:
        is_new = user not in worker.users
        worker.users[user] = last_sync_ms
        if is_new:
            speaker.held += 1
            count = self._counts[user] = self._counts.get(user, 0) + 1
            if count == 1:
                self._tell(user, last_sync_ms, is_syncing=True)

    def _end(self, worker: _Worker, speaker: _Speaker, user: _User, last_sync_ms: int) -> None:
        if worker.users.pop(user, None) is None:
            return
        speaker.held -= 1
        if not worker.users:
            del self._workers[worker.name]
            del speaker.workers[worker.name]
        self._release(user, last_sync_ms)

    def _release(self, user: _User, last_sync_ms: int) -> None:
        """One worker fewer has this user."""
        count = self._counts[user] - 1
        if count:
            self._counts[user] = count
        else:
            del self._counts[user]
            self._tell(user, last_sync_ms, is_syncing=False)

    def _take_over(self, worker: _Worker, speaker: _Speaker) -> None:
        """Another connection speaks for this worker now."""
        self._detach(worker)
        worker.speaker = speaker
        speaker.workers[worker.name] = worker
        speaker.held += len(worker.users)

    def _detach(self, worker: _Worker) -> None:
        if worker.speaker is not None:
            worker.speaker.held -= len(worker.users)
            del worker.speaker.workers[worker.name]
        elif self._waiting.pop(worker.name, None) is not None:
            self._waiting_users -= len(worker.users)

    def _drop(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is None:
            return
        self._detach(worker)
        for user, last_sync_ms in worker.users.items():
            self._release(user, last_sync_ms)

    def _tell(self, user: _User, last_sync_ms: int, *, is_syncing: bool) -> None:
        change = SyncingUser(
            user_id=user[0], device_id=user[1], is_syncing=is_syncing, last_sync_ms=last_sync_ms
        )
        for watcher in self._watchers:
            watcher(change)

    def _arm(self) -> None:
        if self._timer is None and self._workers:
            self._timer = self._clock.callLater(EXPIRY_SECONDS / 10, self._expire)

    def _expire(self) -> None:
        self._timer = None
        limit = self._clock.seconds() - EXPIRY_SECONDS
        for worker in list(self._workers.values()):
            heard = worker.heard if worker.speaker is None else max(worker.heard, worker.speaker.heard)
            if heard <= limit:
                self._drop(worker.name)
        self._arm()


def _excess(speaker: _Speaker, worker: _Worker | None, command: UserSync) -> str:
    """Which bound the connection would pass by this command; empty if none."""
    for name in (command.instance_id, command.user_id, command.device_id or ""):
        if len(name) > MAX_NAME:
            return f"a name in USER_SYNC holds up to {MAX_NAME} characters"
    added = 0
    if worker is None or worker.speaker is not speaker:
        if len(speaker.workers) >= MAX_INSTANCES:
            return f"one connection speaks for up to {MAX_INSTANCES} instances in USER_SYNC"
        added = 0 if worker is None else len(worker.users)
    if command.is_syncing and (worker is None or (command.user_id, command.device_id) not in worker.users):
        added += 1
    if added and speaker.held + added > MAX_USERS:
        return f"one connection holds up to {MAX_USERS} users in USER_SYNC"
    return ""
