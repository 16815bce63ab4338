"""A Spark stream follows the log when its primary is killed and a replica is promoted."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.processes.loading import size
from tests.processes.replicas import Member
from tests.replicas.processes.upstream_kills import BehindProxy, Ports, Reader, Readers, follow_through_kills

ROUNDS: Final = size(2, 20)


@pytest.mark.slow
def test_a_stream_moves_on_with_each_promotion(tmp_path: Path) -> None:
    """It has each fact of the promoted copy once, and begins anew when it had more."""

    def stream(
        folder: Path, readers: Readers, members: list[Member], proxies: Mapping[str, Ports]
    ) -> Iterable[BehindProxy]:
        urls = ",".join(one.front_url for one in members)
        readers.add(Reader(folder, "spark", "-m", "tests.pipeline.upstreams_stream", urls, str(folder)))
        return []

    follow_through_kills(tmp_path, ROUNDS, more=stream)
