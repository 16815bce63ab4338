"""A daemon whose log has a flipped bit: replicas and backups do not get it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.damaged_daemon import CLOSED, DAMAGED, FLIPPED, damaged_daemon
from tests.processes.channel import eventually, status
from tests.service.processes import Daemon
from tests.upgrades.frozen import Release


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon."""
    with damaged_daemon(tmp_path_factory.mktemp("damaged")) as daemon:
        yield daemon


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
