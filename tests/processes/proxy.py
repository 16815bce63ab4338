"""A TCP proxy whose links can be cut, stalled, slowed down and garbled, while its test looks on."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, TypeVar

__all__ = ["Proxy"]

T = TypeVar("T")

CHUNK: Final = 64 * 1024
STEP_SECONDS: Final = 0.01
SLOW_PARTS: Final = 20
"""In how many pieces a second what is slowed down goes on."""


class Proxy:
    """Passes on what comes to `address` to a port of this machine, from a thread of its own.

    `down` counts the bytes that came from the server, `up` those that went to it, `links` the connections.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1", at: int = 0, seed: int = 0) -> None:
        self.up = 0
        self.down = 0
        self.links = 0
        self.flipped = 0
        self._target = port
        self._chance = random.Random(seed)
        self._is_refusing = False
        self._is_stalled = False
        self._rate: float | None = None
        self._flip_every = 0
        self._flips_up = False
        self._chunks = 0
        self._cut_after: int | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, at))
        self.host, self.port = self._socket.getsockname()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._do(self._listen())

    @property
    def address(self) -> str:
        """Host and port where it listens."""
        return f"{self.host}:{self.port}"

    # -- what a test does to it ----------------------------------------------------------------------------

    def cut(self) -> None:
        """End every connection, at once and without a farewell."""
        self._do(self._cut())

    def go_to(self, port: int) -> None:
        """Pass new connections on to this port."""
        self._target = port

    def cut_after(self, count: int) -> None:
        """End every connection once so many bytes more came from the server."""
        self._cut_after = self.down + count

    @property
    def is_to_be_cut(self) -> bool:
        """Whether the bytes of `cut_after` have not come yet."""
        return self._cut_after is not None

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Nobody gets through: what is there ends, what comes is turned away."""
        self._is_refusing = True
        self.cut()
        try:
            yield
        finally:
            self._is_refusing = False

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Connections stay, and nothing passes, neither way."""
        self._is_stalled = True
        try:
            yield
        finally:
            self._is_stalled = False

    def slow(self, bytes_per_second: float | None) -> None:
        """Let this much pass of each connection, each way; None for as much as there is."""
        self._rate = bytes_per_second

    def flip(self, every: int, *, up: bool = False) -> None:
        """Change a bit of every so many-th chunk that comes from the server, or goes there; 0 for none."""
        self._flip_every = every
        self._flips_up = up

    def add(self, data: bytes) -> None:
        """Send this to every client, as if the server had sent it."""

        async def write() -> None:
            for writer in self._clients & self._open:
                writer.write(data)

        self._do(write())

    def close(self) -> None:
        """End it."""
        self._is_stalled = False
        self._is_refusing = True
        with suppress(RuntimeError):
            self._do(self._cut())
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- in its thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        await asyncio.start_server(self._serve, sock=self._socket, limit=CHUNK)

    async def _cut(self) -> None:
        self._abort_all()

    def _abort_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self._clients.add(writer)
        server: asyncio.StreamWriter | None = None
        try:
            if not self._is_refusing:
                from_server, server = await asyncio.open_connection("127.0.0.1", self._target, limit=CHUNK)
                self._open.add(server)
                self.links += 1
                await asyncio.gather(
                    self._pass(reader, server, self._went), self._pass(from_server, writer, self._came)
                )
        except OSError:
            pass
        finally:
            self._clients.discard(writer)
            for one in filter(None, (writer, server)):
                self._open.discard(one)
                one.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        told: Callable[[bytes], bytes],
    ) -> None:
        while True:
            rate = self._rate
            data = await reader.read(CHUNK if rate is None else max(1, int(rate / SLOW_PARTS)))
            while self._is_stalled:
                await asyncio.sleep(STEP_SECONDS)
            if not data:
                # Half a connection is no good to either end here.
                if writer.transport.is_closing():
                    raise ConnectionResetError
                await writer.drain()
                writer.close()
                return
            writer.write(told(data))
            await writer.drain()
            if rate is not None:
                await asyncio.sleep(len(data) / rate)

    def _went(self, data: bytes) -> bytes:
        self.up += len(data)
        return self._garbled(data) if self._flips_up else data

    def _came(self, data: bytes) -> bytes:
        self.down += len(data)
        if self._cut_after is not None and self.down >= self._cut_after:
            data = data[: max(0, len(data) - (self.down - self._cut_after))]
            self._cut_after = None
            # What was written before it gets through; an abort would take that away too.
            self._loop.call_later(STEP_SECONDS, self._abort_all)
        return data if self._flips_up else self._garbled(data)

    def _garbled(self, data: bytes) -> bytes:
        if not self._flip_every or not data:
            return data
        self._chunks += 1
        if self._chunks % self._flip_every:
            return data
        self.flipped += 1
        changed = bytearray(data)
        changed[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)
        return bytes(changed)
