"""A wall clock that somebody sets: what follows is neither days late nor gone."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests.processes.channel import eventually, kept, status
from tests.processes.loading import Asker, RawReader
from tests.processes.wall_clock import CLOCKED, WallClock
from tests.service.processes import Daemon

DAYS: Final = 8 * 86_400


def clocked(folder: Path, *options: str) -> Daemon:
    """A daemon in a folder of its own, whose clock can be set."""
    folder.mkdir(exist_ok=True)
    return Daemon(folder, program=CLOCKED, options=("--server-name", "hs", *options))


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """The right time, until it is set."""
    return WallClock(tmp_path / "clock", monkeypatch.setenv)


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
        clocked(tmp_path / "primary") as primary,
        clocked(tmp_path / "replica", "--upstream", f"tcp:{primary.follow}") as replica,
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
