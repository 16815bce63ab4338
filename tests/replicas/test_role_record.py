"""The role record on disk: changes that overlap are made one after the other."""

from typing import Any

import msgspec
from twisted.internet.defer import Deferred

from synrepl.replicas.roles.record import RoleRecord, RoleStore
from synrepl.replicas.roles.role_states import Role
from synrepl.replication.addresses import Address

HERE, THERE = Address.parse("tcp:here:1 -"), Address.parse("tcp:there:1 -")


class SlowLog:
    """A log whose notes are on disk when the test says so."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self.epoch_starts: list[Any] = []
        self.epoch, self.uuid = 2, "ours"
        self.waiting: list[tuple[Deferred[None], dict[str, str | None]]] = []

    def note(self, **notes: str | None) -> Deferred[None]:
        """Store these, later."""
        stored: Deferred[None] = Deferred()
        self.waiting.append((stored, notes))
        return stored

    def store(self) -> None:
        """All that was asked for is on disk now, in order."""
        waiting, self.waiting = self.waiting, []
        for stored, notes in waiting:
            self.notes |= {name: text for name, text in notes.items() if text is not None}
            stored.callback(None)


def test_a_notification_does_not_undo_a_fencing() -> None:
    """A daemon that is fenced while it tells others of itself would be primary after its next start."""
    log: Any = SlowLog()
    store = RoleStore(log, own=lambda: HERE, local=list)
    Deferred.fromCoroutine(
        store.save(RoleRecord(Role.PRIMARY, 2, "ours", str(HERE), unnotified=(str(THERE),)))
    )
    log.store()
    fenced = RoleRecord(Role.FENCED, 3, "theirs", str(THERE))

    Deferred.fromCoroutine(store.save(fenced))
    assert store.load() == fenced, "before it is on disk"
    Deferred.fromCoroutine(store.save_unnotified([]))
    log.store()

    found = store.load()
    assert found is not None
    assert (Role.FENCED, 3, str(THERE)) == (found.role, found.epoch, found.address)
    assert store.primary == THERE


def test_a_record_that_an_earlier_release_has_stored_is_read() -> None:
    """Its field has another name there; without it a promoted daemon would not notify the others."""
    log: Any = SlowLog()
    log.notes["role"] = '{"role":"primary","epoch":2,"uuid":"ours","told":["tcp:there:1 -"]}'

    found = RoleStore(log, own=lambda: HERE, local=list).load()

    assert found == RoleRecord(Role.PRIMARY, 2, "ours", unnotified=(str(THERE),))
    assert msgspec.json.decode(msgspec.json.encode(found))["told"] == [str(THERE)]
