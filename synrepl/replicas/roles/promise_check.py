"""The check of a promotion: nothing that replicas have acknowledged is given up.

A promotion by force asks nobody but those who could have acknowledged what the candidate lacks: the replicas
of the newest promise in its log (`replicas/promises.py`). With M replicas of which any N acknowledge, an
acknowledged fact is at N of them, so that M-N+1 answers, the candidate itself included, have one of those
among them; where certain replicas acknowledge, one of them is enough. If none that answered is ahead, the
candidate has everything that was acknowledged.

A candidate that was away since before the first promise knows of none. So whatever other daemons it knows are
asked too: one that answers, has a promise and is ahead is as good a reason. One that does not answer is none.

The check says what was true when each replica answered. That the old primary takes no more facts meanwhile is
what the operator asserts by `force`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.replicas.issued_keys import IssuedKeys
from synrepl.replicas.promises import PromisedReplica, StoredPromise, newest_promises
from synrepl.replicas.roles.asking import ask_all
from synrepl.replicas.roles.messages import CannotPromote, IPeerClient, NewerFact, PeerStatus
from synrepl.replication.addresses import Address
from synrepl.storage.log import Log
from synrepl.wire.acks import Acks
from synrepl.wire.text import printable

MAX_ASKED: Final = 50
"""How many daemons are asked that are not in the promise."""


class AheadReplica(msgspec.Struct, frozen=True):
    """A replica that has facts which the candidate lacks: its position, and the first of these facts."""

    name: str
    address: str
    epoch: int
    serial: int
    facts: Sequence[NewerFact]


@dataclass(eq=False, repr=False)
class PromiseCheck:
    """Asks the replicas of the newest promise whether one of them is ahead of this daemon.

    `known` returns the addresses of all daemons that are known here. Of the `issued` keys those are revoked
    that daemons which answer know to be revoked: no revocation that anybody knows is lost.
    """

    log: Log
    clock: IClock
    peers: IPeerClient
    _: KW_ONLY
    known: Callable[[], Sequence[Address]] = tuple
    issued: IssuedKeys
    _logger = Logger()

    async def prove(self, believed: Collection[str] | None) -> StoredPromise | None:
        """Return the newest promise of the primary, or of the writers that an operator believes.

        Raises `CannotPromote` if several writers promised, of which one at most was primary, and no operator
        has said whom to believe (None); and `StorageError`.
        """
        promises = await newest_promises(self.log)
        if len(promises) > 1 and believed is None:
            newest = promises[-MAX_ASKED:]
            listed = ", ".join(f"{printable(one.writer)} (serial {one.serial})" for one in newest)
            why = (
                "promises of several writers are in the log, since a release up to 26.11.0 stored what"
                f" anybody published; one of them, at most, was the primary: {listed}"
            )
            told = [
                {
                    "serial": one.serial,
                    "epoch": one.epoch,
                    "writer": one.writer,
                    "acks": list(map(str, one.acks)),
                }
                for one in newest
            ]
            raise CannotPromote("promises_unproven", why, more={"promises": told})
        counted = [one for one in promises if believed is None or one.writer in believed]
        return counted[-1] if counted else None

    async def check(self, promise: StoredPromise | None) -> None:
        """Ask whether an acknowledged fact would be given up, by what was promised (`prove`).

        Raises `CannotPromote` if one would be, or could be, given up; and `StorageError`.
        """
        promised = () if promise is None else promise.replicas
        others = [one for one in promised if one.uuid != self.log.uuid]
        addresses = [Address.parse(one.address) for one in promised]
        known = [str(one) for one in self.known() if not any(map(one.is_same, addresses))][:MAX_ASKED]
        found = await self._ask([*others, *(PromisedReplica("", one, one) for one in known)])
        answers = [(one, status) for one, status in found if one.uuid or status.has_promise]
        ahead = [copy for one, status in answers if (copy := self._ahead(one, status)) is not None]
        if ahead:
            names = ", ".join(f"{printable(one.name)} (serial {one.serial})" for one in ahead)
            mine = self.log.position
            why = (
                f"replicas have facts that this daemon (serial {mine.serial}) lacks, and some may have been"
                f" acknowledged: {names}"
            )
            raise CannotPromote("others_ahead", why, more={"ahead": msgspec.to_builtins(ahead)})
        answered = {one.uuid for one, _ in answers} | {self.log.uuid}
        if promise is not None and not all(_is_enough(promise, acks, answered) for acks in promise.acks):
            silent = [one for one in others if one.uuid not in answered]
            names = ", ".join(printable(one.name) for one in silent)
            why = (
                f"{names} did not answer, and could have facts that were acknowledged and that this daemon"
                f" lacks ({_needs(promise)})"
            )
            more = {"silent": [{"name": one.name, "address": one.address} for one in silent]}
            raise CannotPromote("replicas_silent", why, more=more)
        ended = {issued for _, status in found for issued in status.revoked}
        if ended and (revoked := await self.issued.take_revoked(ended)):
            why = "revoked the keys that other daemons know to be revoked: {names}"
            self._logger.warn(why, names=", ".join(revoked))

    async def _ask(self, replicas: Sequence[PromisedReplica]) -> list[tuple[PromisedReplica, PeerStatus]]:
        """Return what replicas say, without those that do not answer, or for which another daemon does."""
        addresses = [Address.parse(one.address) for one in replicas]
        answers = await ask_all(self.peers, self.clock, addresses, after=self.log.head.serial)
        return [
            (one, status)
            for one, status in zip(replicas, answers, strict=True)
            if status is not None and (status.uuid == one.uuid if one.uuid else status.uuid != self.log.uuid)
        ]

    def _ahead(self, replica: PromisedReplica, status: PeerStatus) -> AheadReplica | None:
        mine = self.log.position
        # One that is still joining, or has joined another log, has no fact of this one. The position of a
        # copy of some streams is that of the log: what it can have alone is its facts.
        if status.history != self.log.history or not (status.newer or status.position.epoch > mine.epoch):
            return None
        at = status.position
        return AheadReplica(replica.name, replica.address, at.epoch, at.serial, status.newer)


def _is_enough(promise: StoredPromise, acks: Acks, answered: set[str]) -> bool:
    have = [one.name for one in promise.replicas if one.uuid in answered]
    if acks.names:
        return any(name in acks.names for name in have)
    return len(have) >= len(promise.replicas) - acks.number + 1


def _needs(promise: StoredPromise) -> str:
    total = len(promise.replicas)
    needs = [
        f"one of {', '.join(map(printable, acks.names))} must answer"
        if acks.names
        else f"{max(0, total - acks.number + 1)} of {total} replicas must answer"
        for acks in promise.acks
    ]
    return "; ".join(needs)
