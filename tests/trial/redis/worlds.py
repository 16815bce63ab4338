"""Real Redis servers for the stories of links."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.link import RedisLink
from tests.redis.worlds import Setup, World
from tests.servers.redis import RedisServer
from tests.trial.waiting import eventually

__all__ = ["RealWorld", "RedisCase"]


class RealWorld(World):
    """A redis-server that runs, reached by TCP, by its socket ("unix"), or with a password ("password").

    `arguments` are further ones of its program.
    """

    def __init__(self, kind: str, home: Path, arguments: Sequence[str] = ()) -> None:
        self.reactor = reactor
        self.server = RedisServer(password="hush" if kind == "password" else None, arguments=arguments)
        self.server.start()
        self.url = self.server.url
        url = f"redis+unix://{self.server.socket}" if kind == "unix" else self.url
        if kind == "password":
            path = home / "right-password"
            path.write_text("hush\n")
            url += f"?password_file={path}"
        self.address = RedisAddress.parse(url)
        self._links: list[RedisLink] = []

    def link(self, member: Any, **options: Any) -> RedisLink:
        link = super().link(member, **options)
        self._links.append(link)
        return link

    async def close(self) -> None:
        """Stop what a failed story has left, and the server."""
        try:
            for link in self._links:
                await link.stop()
        finally:
            self.server.remove()

    async def until(self, is_so: Callable[[], object], what: str = "it never came") -> None:
        await eventually(is_so, what)

    async def wait(self, seconds: float) -> None:
        await deferLater(self.reactor, seconds)

    def publish(self, channel: str, payload: bytes) -> int:
        return int(self.server.command("PUBLISH", channel, payload))

    def cut(self, role: str) -> None:
        (found,) = [client for client in self.server.clients() if client["name"].endswith(f":{role}")]
        assert self.server.kill_client(found["id"])

    def kill(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server.start()

    def stall(self) -> None:
        self.server.pause()

    def go_on(self) -> None:
        self.server.go_on()

    def names(self) -> list[str]:
        return sorted(client["name"] for client in self.server.clients())


class RedisCase(TestCase):
    """With a Redis of this test's own. `kind` and `arguments` are those of its `RealWorld`."""

    timeout = 60.0
    kind = "tcp"
    arguments: Sequence[str] = ()

    def setUp(self) -> None:
        self.home = Path(self.mktemp()).absolute()
        self.home.mkdir()
        self.world = RealWorld(self.kind, self.home, self.arguments)
        self.addCleanup(lambda: ensureDeferred(self.world.close()))

    def tell(self, setup: Setup) -> "Deferred[None]":
        """Fires when the story has ended."""
        return ensureDeferred(setup(self.world))
