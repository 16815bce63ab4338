"""The clients of the benchmark of the RESP port.

python -m scripts.bench_parts.resp_peer ROLE PORT NUMBER SECONDS: `read` subscribes so many times, and tells
how long lines took; `read3` does so with RESP3. `publish` publishes so many lines a second, and asks for a
value between them.
"""

import json
import re
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

from scripts.bench_parts.redis_peer import command

CHANNEL: Final = b"bench"
LINE: Final = (
    b'RDATA events bench %d ["ev",["$at%020d","!room:here","m.room.member","@user:here",null,null,"join",'
    b"false,false]]"
)
AT: Final = re.compile(rb'"[$]at([0-9]{20})"')
WARM_UP_SECONDS: Final = 0.5
GET_EVERY: Final = 0.01


def main() -> None:
    """Play the role of the first argument."""
    role, port, number, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    found = {"read": read, "read3": read3, "publish": publish}[role](port, number, seconds)
    print(json.dumps(found), flush=True)


def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    ordered = sorted(seconds) or [0.0]
    return {
        f"{name}_p50": 1000 * ordered[len(ordered) // 2],
        f"{name}_p99": 1000 * ordered[int(len(ordered) * 0.99)],
        f"{name}_count": len(seconds),
    }


def connected(port: int, *requests: Sequence[bytes]) -> socket.socket:
    """Connect, send requests and read their answers."""
    found = socket.create_connection(("127.0.0.1", port))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for words in requests:
        found.sendall(command(*words))
        found.recv(1000)
    return found


def read3(port: int, count: int, seconds: float) -> dict[str, float]:
    """Do as `read`, with RESP3."""
    return read(port, count, seconds, (b"HELLO", b"3"))


def read(port: int, count: int, seconds: float, *greeting: Sequence[bytes]) -> dict[str, float]:
    """Subscribe `count` times; return how long lines took."""
    selector = selectors.DefaultSelector()
    for _ in range(count):
        selector.register(connected(port, *greeting, (b"SUBSCRIBE", CHANNEL)), selectors.EVENT_READ)
    print("ready", flush=True)
    took: list[float] = []
    began = time.monotonic()
    while time.monotonic() < began + WARM_UP_SECONDS + seconds:
        for key, _ in selector.select(0.1):
            data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]  # they are sockets
            now = time.monotonic_ns()
            if now / 1e9 > began + WARM_UP_SECONDS:
                # Of a line that two reads share the time may be cut: one in thousands.
                took += [(now - int(at)) / 1e9 for at in AT.findall(data)]
    return quantiles("line", took)


def publish(port: int, rate: int, seconds: float) -> dict[str, float]:
    """Publish `rate` lines a second; return how long the answers to GET took meanwhile."""
    lines, values = connected(port), connected(port, (b"SET", b"key", b"value"))
    lines.sendall(command(b"PUBLISH", CHANNEL, b"POSITION events bench 0 0"))
    lines.setblocking(False)
    took: list[float] = []
    sent, began, next_get = 0, time.monotonic(), 0.0
    while (now := time.monotonic()) < began + WARM_UP_SECONDS + seconds:
        due = int((now - began) * rate)
        requests = [
            command(b"PUBLISH", CHANNEL, LINE % (token, time.monotonic_ns()))
            for token in range(sent + 1, due + 1)
        ]
        sent = due
        _send(lines, requests)
        if now >= next_get:
            next_get = now + GET_EVERY
            values.sendall(command(b"GET", b"key"))
            values.recv(1000)
            took.append(time.monotonic() - now)
        time.sleep(0.0005)
    return {"lines": sent, **quantiles("get", took)}


def _send(connection: socket.socket, requests: Sequence[bytes]) -> None:
    """Send requests, and throw their answers away."""
    data = b"".join(requests)
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            time.sleep(0.0005)
        try:
            while connection.recv(1 << 16):
                pass
        except BlockingIOError:
            pass


if __name__ == "__main__":
    main()
