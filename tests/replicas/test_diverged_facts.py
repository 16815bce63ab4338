"""What only this copy had, in a file."""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.errors import StorageError
from synrepl.replicas.diverged_facts import DivergedFacts
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.facts import Fact, decode_facts
from tests.storage.builders import facts_after

FACTS = facts_after(None, ("events", "w", 0, 1), ("events", "w", 1, 2), ("events", "w", 2, 3), epoch=4)


async def pages(*some: Sequence[Fact]) -> AsyncIterator[Sequence[Fact]]:
    for page in some:
        yield page


def kept(stem: Path, *some: Sequence[Fact]) -> Path | None:
    results: list[Path | None] = []
    Deferred.fromCoroutine(DivergedFacts(stem, ImmediateThread()).keep(pages(*some))).addCallback(
        results.append
    )
    return results[0]


def test_facts_are_kept_under_a_name_that_says_which(tmp_path: Path) -> None:
    """Beside the log, as lines that everything of ours can read."""
    path = kept(tmp_path / "synrepl.db", FACTS[:2], [], FACTS[2:])

    assert tmp_path / "synrepl.db.only-here-4-1-3.ndjson" == path
    assert FACTS == decode_facts(path.read_bytes())
    assert [path] == list(tmp_path.iterdir())


def test_the_name_is_durable_before_it_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica gives its facts up then."""
    synced: list[tuple[Path, list[Path]]] = []

    def sync(folder: Path) -> None:
        synced.append((folder, sorted(folder.iterdir())))

    monkeypatch.setattr("synrepl.replicas.diverged_facts.sync_directory", sync)
    path = kept(tmp_path / "synrepl.db", FACTS)

    assert [(tmp_path, [path])] == synced


@pytest.mark.parametrize("some", [(), ([],)])
def test_without_diverged_facts_no_file_is_written(tmp_path: Path, some: tuple[Sequence[Fact], ...]) -> None:
    """Most replicas have nothing of their own."""
    assert kept(tmp_path / "synrepl.db", *some) is None
    assert [] == list(tmp_path.iterdir())


def test_a_failed_write_of_diverged_facts_is_raised(tmp_path: Path) -> None:
    """Nothing is given up before it is on disk."""
    results: list[object] = []
    keeping = DivergedFacts(tmp_path / "missing" / "synrepl.db", ImmediateThread()).keep(pages(FACTS))
    Deferred.fromCoroutine(keeping).addBoth(results.append)

    (failure,) = results
    assert isinstance(failure, Failure)
    error = failure.value
    assert isinstance(error, StorageError)
    assert error.retryable
    assert "only this copy has" in str(error)


def test_the_same_again_replaces_the_file(tmp_path: Path) -> None:
    """A JOIN that was cut off is tried again."""
    kept(tmp_path / "log", FACTS)
    kept(tmp_path / "log", FACTS)

    assert 1 == len(list(tmp_path.iterdir()))


def test_the_file_of_diverged_facts_is_private(tmp_path: Path) -> None:
    """They hold what users told; a secret guards that everywhere else."""
    before = os.umask(0)
    try:
        path = kept(tmp_path / "log", FACTS)
    finally:
        os.umask(before)

    assert path is not None
    assert 0o600 == path.stat().st_mode & 0o777
