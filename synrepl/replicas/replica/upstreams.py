"""The upstreams of a replica: which one is in use, and which comes next after a failure."""

from collections.abc import Callable, Sequence
from typing import Final

from synrepl.base.time import Backoff, doubling
from synrepl.errors import NotConnected
from synrepl.replicas.replica.conversation import IConversation, IUpstream
from synrepl.replication.addresses import Address
from synrepl.wire.address_list import AddressList, Fault

FIRST_RETRY_SECONDS: Final = 0.2
MAX_RETRY_SECONDS: Final = 10.0


class NoUpstream:
    """Stands for an upstream whose address may not be used: each attempt fails, and says why."""

    def __init__(self, where: Address, why: str) -> None:
        self.where = where
        self._why = why

    async def connect(self, uuid: str, name: str) -> IConversation:
        """Raise `NotConnected`."""
        raise NotConnected(self._why)


class Upstreams:
    """Daemons of one log, in order of preference; one of them is in use."""

    def __init__(self, upstreams: Sequence[IUpstream], jitter: Callable[[], float]) -> None:
        self._by_address = {str(one.where): one for one in upstreams}
        self._addresses = AddressList(list(self._by_address))
        self._backoff = Backoff(doubling(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS), jitter=jitter)
        self.current = upstreams[0]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._by_address)

    @property
    def is_first_failure(self) -> bool:
        """Whether not all of them have failed since the last success: repeated failures are not logged."""
        return self._backoff.failures == 0

    def succeeded(self) -> None:
        """Note that the one in use works."""
        self._addresses.succeeded()
        self._backoff.reset()

    def failed(self, fault: Fault, moved_to: str) -> float:
        """Note that the one in use has failed, and use the next. Returns the seconds to wait before that.

        `moved_to` is the address to which it redirects, or empty.
        """
        is_new_round = self._addresses.failed(fault, moved_to=self.at(moved_to))
        if len(self._by_address) > 1:
            self.current = self._by_address[self._addresses.current]
        return self._backoff.next() if is_new_round else 0.0

    def retry_seldom(self) -> None:
        """Wait as long as after many failures: an operator must mend the cause."""
        self._backoff.exhaust()

    def at(self, address: str) -> list[str]:
        """Return those that are reached at this address."""
        where = Address.parse(address)
        return [text for text, one in self._by_address.items() if where.is_same(one.where)]
