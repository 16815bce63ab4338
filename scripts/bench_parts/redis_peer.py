"""One process of the benchmark over Redis: python -m scripts.bench_parts.redis_peer ROLE URL ROWS."""

import json
import socket
import sys
import time
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import hiredis

from scripts.bench_parts.measuring import EVENT
from synrepl.streams.writer import Writer

CHANNEL: Final = b"bench"
AT_ONCE: Final = 500
FACT: Final = b"[%s]" % EVENT


def main() -> None:
    """Run the process with the role of the first argument."""
    role, url, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    {
        "bare-publisher": bare_publisher,
        "bare-subscriber": bare_subscriber,
        "publisher": publisher,
        "follower": follower,
    }[role](url, rows)


def tell_time(what: str) -> None:
    """Print the time of an event, by the clock that all processes of a machine share."""
    print(json.dumps({what: time.monotonic()}), flush=True)


def command(*words: bytes) -> bytes:
    """Encode a Redis command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def connected(url: str) -> socket.socket:
    """Connect to the Redis of a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 6379))


def bare_publisher(url: str, rows: int) -> None:
    """Publish as fast as plain Python can: prepared commands, many in one write; answers are only counted."""
    chunks = [
        b"".join(
            command(b"PUBLISH", CHANNEL, b"RDATA events bench %d %s" % (token, EVENT))
            for token in range(first, min(first + AT_ONCE, rows + 1))
        )
        for first in range(1, rows + 1, AT_ONCE)
    ]
    with connected(url) as redis:
        tell_time("began")
        redis.sendall(command(b"PUBLISH", CHANNEL, b"POSITION events bench 0 0"))
        answers = 0
        for chunk in chunks:
            redis.sendall(chunk)
            answers += redis.recv(65536).count(b":")
        while answers < rows + 1:
            answers += redis.recv(65536).count(b":")


def bare_subscriber(url: str, rows: int) -> None:
    """Count the messages that arrive."""
    reader = hiredis.Reader()
    with connected(url) as redis:
        redis.sendall(command(b"SUBSCRIBE", CHANNEL))
        count = -2  # the confirmation, and POSITION
        while count < rows:
            reader.feed(redis.recv(65536))
            while (reply := reader.gets()) is not False:
                assert isinstance(reply, list)
                count += 1
                if count == -1:
                    print("ready", flush=True)
    tell_time("ended")


def follower(url: str, rows: int) -> None:
    """Follow with a `Follower`, whose subscriber counts typed rows."""
    from twisted.internet import reactor as installed

    from synrepl import Follower, FollowerEvent, Updates, connect
    from synrepl.streams.catalog import EVENTS

    reactor: Any = installed
    follower = Follower(instance="counter", clock=reactor)
    count = 0

    @follower.on(EVENTS)
    def note(updates: Updates[Any]) -> None:
        nonlocal count
        count += len(updates.rows)
        if count == rows:
            tell_time("ended")
            reactor.stop()

    @follower.on_event
    def tell(event: FollowerEvent) -> None:
        if event.kind == "connected":
            # REPLICATE is sent at the end of this turn of the reactor: be ready only after that.
            reactor.callLater(0.2, partial(print, "ready", flush=True))

    connect(reactor, url, follower, server_name=CHANNEL.decode()).startService()
    reactor.run()


def publisher(url: str, rows: int) -> None:
    """Publish with a `Publisher`, from a log in memory, with one row a fact."""
    from prometheus_client import CollectorRegistry
    from twisted.internet.defer import Deferred
    from twisted.internet.task import deferLater
    from twisted.logger import Logger

    from scripts.bench_parts.children import reactor
    from synrepl.base.metrics import Metrics
    from synrepl.replication.membership.daemon_member import DaemonMember
    from synrepl.replication.serving.publisher import Publisher
    from synrepl.storage.log import Log
    from synrepl.storage.threads import ImmediateThread
    from synrepl.streams.table import StreamTable
    from synrepl.testing.memory_engine import MemoryEngine
    from synrepl.transports.redis.address import RedisAddress
    from synrepl.transports.redis.link import RedisLink

    log = Log(MemoryEngine(), ImmediateThread(), ImmediateThread(), reactor, ephemeral=[], logger=Logger())
    metrics = Metrics(CollectorRegistry())

    async def publish() -> None:
        await log.start()
        ours = Publisher(log, StreamTable.default(), reactor, metrics, instance="bench", ring_bytes=10**9)
        ours.follow_log()
        member = DaemonMember(
            clock=reactor, publisher=ours, writes=[Writer("events", "bench")], probe_seconds=0.0
        )
        link = RedisLink(
            reactor,
            RedisAddress.parse(url),
            member,
            server_name=CHANNEL.decode(),
            instance="bench",
            metrics=metrics,
        )
        member.use(link)
        link.start()
        while not member.is_writing:
            await deferLater(reactor, 0.01, lambda: None)
        tell_time("began")
        for _ in range(0, rows, AT_ONCE):
            await log.append("events", "bench", [FACT] * AT_ONCE)
            await deferLater(reactor, 0, lambda: None)
        await link.stop()
        reactor.stop()

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(publish()))
    reactor.run()


if __name__ == "__main__":
    main()
