"""Readers with several addresses follow the log when its primary is killed and a replica is promoted."""

from pathlib import Path
from typing import Final

from tests.processes.loading import size
from tests.replicas.processes.upstream_kills import follow_through_kills

ROUNDS: Final = size(2, 20)


def test_readers_follow_the_log_when_its_primary_is_killed(tmp_path: Path) -> None:
    """Each fact of the promoted copy once, and what was lost is reported; there and back."""
    follow_through_kills(tmp_path, ROUNDS)
