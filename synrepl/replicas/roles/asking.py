"""Questions to other daemons: each is asked for its status, and has a few seconds to answer."""

from collections.abc import Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.defer import TimeoutError as TimedOut

from synrepl.base.interfaces import IClock
from synrepl.errors import NotConnected, ReplicationError
from synrepl.replicas.roles.messages import IPeerClient, PeerStatus
from synrepl.replication.addresses import Address
from synrepl.wire.text import printable

ANSWER_SECONDS: Final = 5.0
"""The time that a daemon has to answer, in seconds."""


async def ask(peers: IPeerClient, clock: IClock, address: Address, *, after: int | None = None) -> PeerStatus:
    """Return a daemon's status, with `after` also its first facts after this serial.

    Raises `ReplicationError` if there is none within `ANSWER_SECONDS`.
    """
    answer: Deferred[PeerStatus] = Deferred.fromCoroutine(peers.describe(address, after=after))
    try:
        return await answer.addTimeout(ANSWER_SECONDS, clock)  # type: ignore[arg-type]
    except TimedOut:
        where = printable(str(address))
        raise NotConnected(f"{where} did not answer within {ANSWER_SECONDS:g} seconds") from None


async def ask_all(
    peers: IPeerClient, clock: IClock, addresses: Sequence[Address], *, after: int | None = None
) -> list[PeerStatus | None]:
    """Ask several daemons at once; None for each that does not answer."""

    async def answer(address: Address) -> PeerStatus | None:
        try:
            return await ask(peers, clock, address, after=after)
        except ReplicationError:
            return None

    asked: Any = [Deferred.fromCoroutine(answer(one)) for one in addresses]
    return [
        status if is_answer else None for is_answer, status in await DeferredList(asked, consumeErrors=True)
    ]
