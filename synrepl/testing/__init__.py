"""Streams in memory on a fake clock: for tests of synrepl, and of workers that use it.

A `Network` joins real protocols by links that can be cut, slowed and stopped; a `FakeDaemon` is the real
log and publisher over a disk made of memory, which can be killed; a `FakeWorker` is a real follower that
remembers what it applied. `Simulation` lets all of them meet bad luck, the same for the same seed."""

from typing import TYPE_CHECKING, Any

from synrepl.testing.cluster import (
    Cluster,
    FakeDaemon,
    FakeWorker,
    MemoryPositions,
    kill_follower,
)
from synrepl.testing.network import MemoryEndpoint, Network
from synrepl.testing.raw_peer import RawPeer, raw_client, raw_server

if TYPE_CHECKING:
    from synrepl.testing.simulation import Simulation

__all__ = [
    "Cluster",
    "FakeDaemon",
    "FakeWorker",
    "MemoryEndpoint",
    "MemoryPositions",
    "Network",
    "RawPeer",
    "Simulation",
    "kill_follower",
    "raw_client",
    "raw_server",
]


def __getattr__(name: str) -> Any:
    if name == "Simulation":  # it is a program as well, which must not be imported before it runs
        from synrepl.testing.simulation import Simulation

        return Simulation
    raise AttributeError(f"module 'synrepl.testing' has no attribute {name!r}")
