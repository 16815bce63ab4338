"""AddressList: which of several servers of one log to try next. It does no I/O, and knows no time.

Everything that has several addresses decides with it: followers over TCP, replicas, readers over HTTP,
commands and the Spark source (which sends this module to its tasks).
"""

import enum
from collections.abc import Sequence
from typing import Final

from synrepl.errors import ConfigError


class Fault(enum.Enum):
    """Why an address was left; the value says it in words."""

    UNREACHABLE = "it cannot be reached, does not respond, or the connection was lost"
    REFUSING = "it refuses the connection or the request"
    NOT_READY = "it is not ready"
    STOPPED = "it has stopped, or is stopping"
    FENCED = "it is fenced: another daemon is primary"


_LAST: Final = frozenset({Fault.STOPPED, Fault.FENCED})
"""The faults that only an operator ends."""

_FAULTS: Final = {
    "fenced": Fault.FENCED,
    "read_only": Fault.FENCED,
    "other_epoch": Fault.FENCED,
    "stopped": Fault.STOPPED,
    "stopping": Fault.STOPPED,
    "not_ready": Fault.NOT_READY,
    "starting": Fault.NOT_READY,
    "handing_over": Fault.NOT_READY,
}


def fault_of(code: str) -> Fault:
    """Return the fault that an error code of a daemon means."""
    return _FAULTS.get(code, Fault.REFUSING)


class AddressList:
    """The addresses of the servers of one log, in order of preference.

    The caller tries `current`, and calls `succeeded` once it works, or `failed` when the attempt or the
    connection ends. In a round each address is tried once: those that an operator must repair (fenced,
    stopped) last, those with another fault before them, each in order of preference. The address that a
    server named comes first. Within a round there is no pause; before the next one the caller pauses.

    Raises `ConfigError` without addresses, or if one is given twice.

    >>> servers = AddressList(["a", "b"])
    >>> servers.failed(Fault.FENCED), servers.current
    (False, 'b')
    >>> servers.failed(), servers.current
    (True, 'b')
    >>> servers.failed(), servers.current
    (False, 'a')
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        if not addresses:
            raise ConfigError("no address is given: give at least one")
        for number, address in enumerate(addresses):
            if address in addresses[:number]:
                raise ConfigError(f"the address {address} is given twice")
        self.addresses = tuple(addresses)
        self.current = self.addresses[0]
        """The address to try, or in use."""
        self.faults: dict[str, Fault] = {}
        """Why each address was left last; without those that worked or were not tried."""
        self._left = list(self.addresses[1:])
        self._is_working = False

    def succeeded(self) -> None:
        """`current` works."""
        self.faults.pop(self.current, None)
        self._is_working = True

    def failed(self, fault: Fault = Fault.UNREACHABLE, *, moved_to: Sequence[str] = ()) -> bool:
        """Move on from `current`; return whether a new round begins, before which the caller pauses.

        `moved_to`: the addresses under which the primary is known to `current`. One that is not in the list
        is ignored: a server must not send its followers elsewhere.
        """
        self.faults[self.current] = fault
        was_working, self._is_working = self._is_working, False
        # Also after a connection that worked: two servers that drop every connection are not hammered.
        is_new_round = was_working or not self._left
        if is_new_round:
            self._left = sorted(self.addresses, key=self._rank)
        named = next((one for one in moved_to if one in self._left), None)
        self.current = named or self._left[0]
        self._left.remove(self.current)
        return is_new_round

    def _rank(self, address: str) -> int:
        fault = self.faults.get(address)
        return 0 if fault is None else 2 if fault in _LAST else 1
