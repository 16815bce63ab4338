"""Lookup of a service's master through Sentinels."""

from typing import Final

from twisted.python.failure import Failure

from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.attempt import Attempt
from synrepl.transports.redis.connections import Lost, RedisConnection
from synrepl.transports.redis.errors import RedisRefused, host_and_port

__all__ = ["Sentinels"]

TIMEOUT_SECONDS: Final = 3.0
"""Timeout for one Sentinel, so that an unreachable one does not delay the next."""


class Sentinels:
    """The Sentinels of a service; tried in order, the one that responded last first."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._sentinels = list(address.hosts)

    async def find_master(self, attempt: Attempt) -> tuple[str, int]:
        """Return the master's host and port. Raises `RedisRefused` if no Sentinel knows it."""
        failures = []
        for sentinel in list(self._sentinels):
            try:
                master = await attempt.within(TIMEOUT_SECONDS, self._find_at(attempt, *sentinel))
            except RedisRefused as failed:
                failures.append(f"{host_and_port(*sentinel)}: {failed}")
                continue
            # The next lookup starts with this Sentinel.
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return master
        raise RedisRefused(f"no Sentinel knows the master: {'; '.join(failures)}")

    async def _find_at(self, attempt: Attempt, host: str, port: int) -> tuple[str, int]:
        password = self._address.sentinel_password()
        try:
            connection = await attempt.open(host, port, RedisConnection)
            await connection.log_in("", password)
            reply = await connection.run_command("SENTINEL", "get-master-addr-by-name", self._address.service)
        except Lost as lost:
            raise RedisRefused(attempt.describe_loss(Failure(lost))) from None
        finally:
            attempt.close_last("closed by this process")
        match reply:
            case None:
                raise RedisRefused(f"unknown service {self._address.service}")
            case [bytes(master_host), bytes(master_port)] if master_port.isdigit():
                return master_host.decode("utf-8", "replace"), int(master_port)
            case _:
                raise RedisRefused("the server is not a Sentinel")
