"""Followers by lines in one process, which come and go, and count what they receive.

python -m tests.soak.followers PORT... --followers N --seed N

Once a minute each of them has been replaced by another. The first few of each hundred look at every token of
the stream `events`: one that is left out is lost, one that comes again is doubled. When the input ends, the
output is a line of JSON.
"""

import argparse
import json
import random
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Final

STREAM: Final = b"events"
LIFE_SECONDS: Final = 60.0
"""How long a follower stays, on average."""
STEP_SECONDS: Final = 0.2
OPENED_AT_ONCE: Final = 100
CHECKED_OF_HUNDRED: Final = 5
MOST_EXAMPLES: Final = 5


@dataclass(eq=False)
class _Follower:
    """A connection. `tokens` has the last token of each writer; None if this one only counts."""

    socket: socket.socket
    tokens: dict[bytes, int] | None
    rest: bytes = b""


@dataclass
class Followers:
    """The connections, at most `most`, to the daemons at these ports."""

    ports: list[int]
    most: int
    chance: random.Random
    connected: int = 0
    ended: int = 0
    refused: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    examples: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._open: list[_Follower] = []

    def run(self) -> None:
        """Come and go until the input ends."""
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        due = time.monotonic()
        while True:
            if time.monotonic() >= due:
                due = time.monotonic() + STEP_SECONDS
                self._come_and_go()
            for key, _ in self._selector.select(STEP_SECONDS):
                if key.data is None:
                    return
                self._receive(key.data)

    def _come_and_go(self) -> None:
        leaving = self.most * STEP_SECONDS / LIFE_SECONDS
        count = int(leaving) + (self.chance.random() < leaving % 1)
        for one in self.chance.sample(self._open, min(count, len(self._open))):
            self._close(one)
        for _ in range(min(OPENED_AT_ONCE, self.most - len(self._open))):
            self._connect()

    def _connect(self) -> None:
        port = self.chance.choice(self.ports)
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=1)
            connection.sendall(b"NAME soak\nREPLICATE\n")
        except OSError:
            self.refused += 1
            return
        connection.setblocking(False)
        is_checked = self.connected % 100 < CHECKED_OF_HUNDRED
        follower = _Follower(connection, {} if is_checked else None)
        self.connected += 1
        self._open.append(follower)
        self._selector.register(connection, selectors.EVENT_READ, follower)

    def _close(self, follower: _Follower) -> None:
        self._open.remove(follower)
        self._selector.unregister(follower.socket)
        follower.socket.close()

    def _receive(self, follower: _Follower) -> None:
        if follower.socket.fileno() < 0:
            return
        try:
            data = follower.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended += 1
            self._close(follower)
            return
        whole, _, follower.rest = (follower.rest + data).rpartition(b"\n")
        self.rows += whole.count(b"\nRDATA ") + whole.startswith(b"RDATA ")
        if b"\nPING" in whole or whole.startswith(b"PING"):
            try:
                follower.socket.sendall(b"PING 0\n")
            except OSError:
                pass  # it is full or gone: the next read tells
        if follower.tokens is not None:
            for line in whole.split(b"\n"):
                self._check(follower.tokens, line)

    def _check(self, tokens: dict[bytes, int], line: bytes) -> None:
        words = line.split(b" ", 5)
        if len(words) < 5 or words[1] != STREAM:
            return
        writer, last = words[2], tokens.get(words[2])
        if words[0] == b"POSITION":
            before, tokens[writer] = int(words[3]), int(words[4])
            if last is not None and before > last:
                self._found("lost", line, before - last, last)
        elif words[0] == b"RDATA" and words[3] != b"batch":
            token = tokens[writer] = int(words[3])
            if last is not None and token > last + 1:
                self._found("lost", line, token - last - 1, last)
            elif last is not None and token <= last:
                self._found("doubled", line, 1, last)

    def _found(self, what: str, line: bytes, count: int, last: int) -> None:
        setattr(self, what, getattr(self, what) + count)
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{what} after {last}: {line[:100].decode(errors='replace')}")


def main() -> None:
    """Run, and print what was received."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--followers", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = Followers(given.ports, given.followers, random.Random(given.seed))
    found.run()
    names = ("connected", "ended", "refused", "rows", "lost", "doubled", "examples")
    print(json.dumps({name: getattr(found, name) for name in names}))


if __name__ == "__main__":
    main()
