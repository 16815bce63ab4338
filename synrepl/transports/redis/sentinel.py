"""Finding the master of a service that Sentinels watch."""

from typing import Final

from twisted.python.failure import Failure

from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.attempt import Attempt
from synrepl.transports.redis.connections import Lost, RedisConnection
from synrepl.transports.redis.errors import RedisRefused, host_and_port

__all__ = ["Sentinels"]

ASK_SECONDS: Final = 3.0
"""What asking one Sentinel may take, so that one that is gone does not keep us from the next."""


class Sentinels:
    """Those of a service, which know its master. They are asked in turn, the one that last answered first."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._places = list(address.hosts)

    async def find_master(self, attempt: Attempt) -> tuple[str, int]:
        """Its host and port. Raises `RedisRefused` if no Sentinel tells."""
        troubles = []
        for sentinel in list(self._places):
            try:
                found = await attempt.within(ASK_SECONDS, self._ask(attempt, *sentinel))
            except RedisRefused as failed:
                troubles.append(f"{host_and_port(*sentinel)}: {failed}")
                continue
            # Next time the one that answered comes first.
            self._places.remove(sentinel)
            self._places.insert(0, sentinel)
            return found
        raise RedisRefused(f"no Sentinel knows the master: {'; '.join(troubles)}")

    async def _ask(self, attempt: Attempt, host: str, port: int) -> tuple[str, int]:
        password = self._address.sentinel_password()
        try:
            asked = await attempt.reach(host, port, RedisConnection)
            await asked.log_in("", password)
            answer = await asked.ask("SENTINEL", "get-master-addr-by-name", self._address.service)
        except Lost as lost:
            raise RedisRefused(attempt.why_lost(Failure(lost))) from None
        finally:
            attempt.hang_up("closed here")
        match answer:
            case None:
                raise RedisRefused(f"it knows no {self._address.service}")
            case [bytes(found_host), bytes(found_port)] if found_port.isdigit():
                return found_host.decode("utf-8", "replace"), int(found_port)
            case _:
                raise RedisRefused("it answers as no Sentinel does")
