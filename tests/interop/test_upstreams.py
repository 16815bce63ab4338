"""Synapse 1.66 follows the log through a proxy, when its primary is killed and a replica is promoted."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from synrepl.streams.facts import Fact
from tests.interop.harness import peer_client
from tests.processes.loading import ids_of, report, size
from tests.processes.replicas import Member
from tests.replicas.processes.upstream_kills import STREAMS, BehindProxy, Ports, Readers, follow_through_kills

ROUNDS: Final = size(2, 20)


class Synapse:
    """The replication client of a real release. It fetches the rows that it missed through the proxy, too."""

    def __init__(self, release: str, name: str, ports: Ports) -> None:
        self._name = name
        self._program = peer_client(
            release, ports.native, "--http", f"127.0.0.1:{ports.http}", server_name="localhost"
        )

    def _facts(self) -> list[tuple[str, int, int]]:
        """Stream, token and number of each fact that it got, in order."""
        events = self._program.all("rdata")
        return [
            (event["stream"], event["token"], ids_of(json.dumps(event["rows"]))[0])
            for event in events
            if event["stream"] in STREAMS
        ]

    def numbers(self) -> Counter[int]:
        """As `BehindProxy` says."""
        return Counter(number for _, _, number in self._facts())

    def check(self, rounds: int, facts: list[Fact]) -> None:
        """It has each fact, except under tokens that it knows from facts that are lost now."""
        got = Counter(self._facts())
        held = {(fact.stream, fact.token, ids_of(fact.rows.decode())[0]) for fact in facts}
        assert [fact for fact in held if got[fact] > 1] == []
        lost, missed = got.keys() - held, held - got.keys()
        for stream, token, number in missed:
            assert any(one[0] == stream and one[1] >= token for one in lost), (stream, token, number)
        assert self._program.all("send_error") == []
        report(
            f"{rounds} kills, Synapse through {self._name}: {len(lost)} facts that were lost later, and"
            f" {len(missed)} of {len(held)} missed, all under tokens of lost facts"
        )

    def __repr__(self) -> str:
        """What it did last, for the reader of a failure."""
        return f"Synapse through {self._name}: {self._program.events[-20:]} {self._program._errors[-20:]}"

    def stop(self) -> None:
        """End it."""
        self._program.kill()


@pytest.mark.only_release("current")
def test_a_synapse_worker_follows_each_promotion(release: str, tmp_path: Path) -> None:
    """It misses what docs/howto/synapse-failover.md says, and nothing else."""

    def workers(
        folder: Path, readers: Readers, members: list[Member], proxies: Mapping[str, Ports]
    ) -> Iterable[BehindProxy]:
        return [Synapse(release, name, ports) for name, ports in proxies.items()]

    follow_through_kills(tmp_path, ROUNDS, more=workers)
