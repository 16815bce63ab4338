"""A daemon whose log has a flipped bit: no way out of it serves what was not written."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.power.damaged_daemon import DAMAGED, FACTS, FLIPPED, TOLD, damaged_daemon, read
from tests.processes.channel import status
from tests.processes.loading import made_rows
from tests.service.processes import PATIENCE_SECONDS, Daemon
from tests.upgrades.freeze import post
from tests.upgrades.frozen import Release


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon."""
    with damaged_daemon(tmp_path_factory.mktemp("damaged")) as daemon:
        yield daemon


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


def test_it_goes_on_and_says_what_is_wrong(damaged: Daemon) -> None:
    """What comes is kept; who asks whether all is well is told that it is not."""
    read(f"{damaged.url}/v1/changelog")

    appended = post(damaged.url, "receipts", [made_rows("receipts", FACTS + 1)])
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{damaged.url}/readyz", timeout=PATIENCE_SECONDS)

    assert appended["first_serial"] == FACTS + 1
    assert refused.value.code == 503
    assert TOLD in json.dumps(status(damaged.url)["errors"])
