"""The upstreams of a replica: which one is in use, and which comes next after a failure."""

from collections.abc import Callable, Sequence
from typing import Final

from synrepl.ports.time import doubling
from synrepl.replication.addresses import Address
from synrepl.replication.replica.conversation import IUpstream
from synrepl.wire.address_list import AddressList, Fault

FIRST_RETRY_SECONDS: Final = 0.2
MAX_RETRY_SECONDS: Final = 10.0


class Upstreams:
    """Daemons of one log, in order of preference; one of them is in use."""

    def __init__(self, upstreams: Sequence[IUpstream], jitter: Callable[[], float]) -> None:
        self._by_address = {str(one.where): one for one in upstreams}
        delays = doubling(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        self._addresses = AddressList(list(self._by_address), delays, jitter=jitter)
        self.current = upstreams[0]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._by_address)

    @property
    def is_first_failure(self) -> bool:
        """Whether not all of them have failed since the last success: repeated failures are not logged."""
        return self._addresses.failed_rounds == 0

    def succeeded(self) -> None:
        """Note that the one in use works."""
        self._addresses.succeeded()

    def failed(self, fault: Fault, moved_to: str) -> float:
        """Note that the one in use has failed, and use the next. Returns the seconds to wait before that.

        `moved_to` is the address to which it redirects, or empty.
        """
        pause = self._addresses.failed(fault, moved_to=self.at(moved_to))
        if len(self._by_address) > 1:
            self.current = self._by_address[self._addresses.current]
        return pause

    def retry_seldom(self) -> None:
        """Wait as long as after many failures: an operator must mend the cause."""
        self._addresses.exhaust()

    def at(self, address: str) -> list[str]:
        """Return those that are reached at this address."""
        where = Address.parse(address)
        return [text for text, one in self._by_address.items() if where.is_same(one.where)]
