"""A daemon whose log has a flipped bit: no way out of it serves what was not written."""

import json
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from synrepl.storage.continuity import CHECKED_AT_OPEN
from tests.processes.channel import eventually, status
from tests.processes.loading import made_rows
from tests.service.processes import PATIENCE_SECONDS, Daemon
from tests.upgrades.freeze import post
from tests.upgrades.frozen import Release

FACTS: Final = CHECKED_AT_OPEN + 300
DAMAGED: Final = 102
"""The serial. The last facts are looked at when the log is opened."""

WRITTEN, FLIPPED = b"~102~", b"~103~"
TOLD: Final = f"serial {DAMAGED} is damaged"
CLOSED: Final = "the log cannot be read now; try again later"


def flip(path: Path) -> None:
    """Flip one bit of a row, in the file as it is: another one would be a copy."""
    with path.open("r+b") as file:
        data = file.read()
        assert data.count(WRITTEN) == 1
        file.seek(data.index(WRITTEN))
        file.write(FLIPPED)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon, whose log had one bit flipped while it was stopped."""
    home = tmp_path_factory.mktemp("damaged")
    with Release().daemon(home) as daemon:
        for first in range(1, FACTS, 100):
            post(daemon.url, "receipts", [made_rows("receipts", one) for one in range(first, first + 100)])
        daemon.terminate()
    flip(home / "synrepl.db")
    with Release().daemon(home) as daemon:
        yield daemon


def read(url: str) -> bytes:
    """What is served there, up to where it ends or is cut off."""
    found = b""
    with suppress(HTTPException, OSError), urlopen(url, timeout=PATIENCE_SECONDS) as response:
        while more := response.read1():
            found += more
    return found


@pytest.mark.parametrize("query", ["", "?streams=receipts", "?writers=master", "?since=101&limit=1"])
def test_the_changelog_ends_before_it(damaged: Daemon, query: str) -> None:
    """As it does when anything else fails: the reader sees that it is cut off, or gets an error."""
    said = read(f"{damaged.url}/v1/changelog{query}")

    assert said.count(FLIPPED) <= 1
    assert f'"serial":{DAMAGED},'.encode() not in said
    assert f'"serial":{FACTS},'.encode() not in said


def test_a_part_without_it_is_served(damaged: Daemon) -> None:
    """The rest of the log is as it was."""
    said = read(f"{damaged.url}/v1/changelog?since={DAMAGED}")

    assert said.count(b'"serial":') == FACTS - DAMAGED


def test_followers_do_not_get_it(damaged: Daemon, tmp_path: Path) -> None:
    """They are told nothing of what they lack, rather than something wrong."""
    at = ("tail", f"tcp:{damaged.follow}", "--http", damaged.url, "--dialect", "1.163")
    with Release().start(*at, "--from", "earliest", "--stream", "receipts", cwd=tmp_path) as tail:
        damaged.wait_for(TOLD)
        tail.wait_until(lambda lines: any(TOLD in line or "rdata" in line or "503" in line for line in lines))

        assert not any(FLIPPED.decode() in line and '"token":102' in line for line in tail.lines)


@pytest.mark.parametrize("over", ["lines", "HTTP"])
def test_replicas_do_not_get_it(damaged: Daemon, tmp_path: Path, over: str) -> None:
    """A join goes on once the log is restored."""
    upstream = damaged.url if over == "HTTP" else f"tcp:{damaged.follow}"
    with Release().daemon(tmp_path / "replica", "--upstream", upstream) as replica:
        why = eventually(lambda: status(replica.url)["upstream"]["why"], "the reason")

        assert status(replica.url)["serial"] < DAMAGED, why


def test_backups_do_not_get_it(damaged: Daemon, tmp_path: Path) -> None:
    """It has what comes before, and waits for the rest."""
    closed = sum(CLOSED in line for line in damaged.lines)
    with Release().start("backup", str(tmp_path / "backup"), "--url", damaged.url, cwd=tmp_path):
        damaged.wait_for(CLOSED, times=closed + 2)

    parts = b"".join(part.read_bytes() for part in (tmp_path / "backup").rglob("*.part"))
    assert parts.count(FLIPPED) <= 1


def test_it_goes_on_and_says_what_is_wrong(damaged: Daemon) -> None:
    """What comes is kept; who asks whether all is well is told that it is not."""
    read(f"{damaged.url}/v1/changelog")

    appended = post(damaged.url, "receipts", [made_rows("receipts", FACTS + 1)])
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{damaged.url}/readyz", timeout=PATIENCE_SECONDS)

    assert appended["first_serial"] == FACTS + 1
    assert refused.value.code == 503
    assert TOLD in json.dumps(status(damaged.url)["errors"])
