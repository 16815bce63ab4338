"""A wall clock that somebody sets: what follows is neither days late nor gone."""

import mmap
import os
import struct
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests.processes.channel import eventually, kept, status
from tests.processes.loading import Asker, RawReader
from tests.service.processes import Daemon

DAYS: Final = 8 * 86_400
CLOCKED: Final = """
import mmap, os, struct, time
with open(os.environ["SET_CLOCK"], "rb") as file:
    added = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real = time.time
time.time = lambda: real() + struct.unpack("q", added[:8])[0]
from twisted.scripts.twistd import run
run()
"""
"""twistd, whose wall clock can be set by a file."""


class WallClock:
    """The clock of the daemons that start while it exists."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._added = mmap.mmap(file.fileno(), 8)
        monkeypatch.setenv("SET_CLOCK", str(path))

    def set(self, seconds: int) -> None:
        """Set it so many seconds ahead of the right time."""
        self._added[:8] = struct.pack("q", seconds)

    def daemon(self, folder: Path, *options: str) -> Daemon:
        """A daemon in a folder of its own."""
        folder.mkdir(exist_ok=True)
        arguments = ("-c", CLOCKED, "--nodaemon", "--pidfile=", "synrepl")
        return Daemon(folder, program=arguments, options=("--server-name", "hs", *options))


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """The right time, until it is set."""
    return WallClock(tmp_path / "clock", monkeypatch)


def post(daemon: Daemon, name: str, key: str | None = None) -> list[int]:
    with Asker(daemon.url) as asker:
        tokens: list[int] = asker.post("push_rules", [[[f"@{name}:hs"]]], key=key)["tokens"]
    return tokens


@pytest.mark.parametrize("seconds", [DAYS, -DAYS])
def test_a_clock_that_is_wrong_for_a_moment(tmp_path: Path, clock: WallClock, seconds: int) -> None:
    """Facts were kept from followers for eight days, and the status was that of the moment. An append with a
    known idempotency key was stored again, and a file that had no name yet was deleted."""
    data = os.urandom(100)
    file = f"/v1/files/sha256/{sha256(data).hexdigest()}"
    with (
        clock.daemon(tmp_path / "primary") as primary,
        clock.daemon(tmp_path / "replica", "--upstream", f"tcp:{primary.follow}") as replica,
        Asker(primary.url) as asker,
    ):
        asker.ask("PUT", file, data)
        first = post(primary, "first", "key")
        eventually(lambda: len(kept(replica.url)) == 1, "a copy")
        clock.set(seconds)
        follower = RawReader(primary.follow, "NAME follower", "REPLICATE")
        follower.wait_for(b"POSITION push_rules")
        post(primary, "wrong")
        follower.wait_for(b"RDATA push_rules master 2 ")
        assert 2 == status(primary.url)["serial"]
        again = post(primary, "first", "key")
        clock.set(0)
        post(primary, "right")
        follower.wait_for(b"RDATA push_rules master 3 ")
        eventually(lambda: len(kept(replica.url)) == 3, "the facts at the replica")
        eventually(lambda: status(primary.url)["serial"] == 3, "a status of now")
        follower.socket.close()

        assert first == again
        assert data == asker.ask("GET", file)
        assert 3 == len(kept(primary.url))
