"""Commands for all processes, at a replica that follows over HTTP: down to its followers, up from them."""

import socket
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Final

from tests.processes.channel import eventually
from tests.processes.loading import report
from tests.processes.replicas import Cluster, Member

UP: Final = b"REMOTE_SERVER_UP"


class Worker:
    """A current worker on a socket, which remembers every line it hears."""

    def __init__(self, member: Member) -> None:
        host, port = member.daemon.follow.rsplit(":", 2)[-2:]
        self._socket = socket.create_connection((host, int(port)), 10)
        self._socket.settimeout(0.05)
        self._heard = b""
        self.say("NAME worker", "REPLICATE")
        eventually(lambda: b"POSITION" in self.heard(), f"positions from {member.name}")

    def say(self, *lines: str) -> None:
        """These lines."""
        self._socket.sendall("".join(f"{line}\n" for line in lines).encode())

    def heard(self) -> bytes:
        """All that came."""
        try:
            while data := self._socket.recv(65_536):
                self._heard += data
        except TimeoutError:
            pass
        return self._heard

    def servers(self) -> list[str]:
        """The servers that it was told of as up."""
        lines = [line.split() for line in self.heard().splitlines()]
        return [line[1].decode() for line in lines if line and line[0] == UP]

    def close(self) -> None:
        """Go away."""
        self._socket.close()


def test_a_server_that_is_up_is_told_through_http_in_both_directions(tmp_path: Path) -> None:
    """Once each, and nothing from before a reconnect."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = cluster.add("replica", upstream=primary.front_url)
        primary.post("events", 1)
        cluster.wait_until_same()
        replica.wait_for(lambda said: said["upstream"]["state"] == "live", "it follows")
        with closing(Worker(primary)) as above, closing(Worker(replica)) as below:
            above.say(f"{UP.decode()} down.example.org")
            eventually(lambda: below.servers() == ["down.example.org"], "told down")
            below.say(f"{UP.decode()} up.example.org")
            eventually(lambda: above.servers() == ["up.example.org"], "told up")

            with primary.http.broken():
                replica.wait_for(lambda said: said["upstream"]["state"] != "live", "it is cut off")
                above.say(f"{UP.decode()} missed.example.org")
            replica.wait_for(lambda said: said["upstream"]["state"] == "live", "it follows again")
            numbers = count(1)

            def told_again() -> bool:
                # It is live before it reads the changelog; what is said until then it misses.
                above.say(f"{UP.decode()} again{next(numbers)}.example.org")
                return len(below.servers()) > 1

            eventually(told_again, "told down again")
            above.say(f"{UP.decode()} last.example.org")
            eventually(lambda: below.servers()[-1] == "last.example.org", "the last is told down")

            told = below.servers()
            assert told[0] == "down.example.org"
            assert "missed.example.org" not in told
            assert len(told) == len(set(told))
            assert above.servers() == ["up.example.org"]
    report(f"commands down over HTTP: {time.monotonic() - begun:.1f} s")
