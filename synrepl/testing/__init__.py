"""Streams in memory on a fake clock: for tests of synrepl, and of workers that use it.

A `Network` joins real protocols by links that can be cut, slowed and stopped. A `FakeDaemon` is the real log
and publisher over a disk in memory, and can be killed. A `FakeWorker` is a real follower that remembers the
facts that it applied.
"""

from synrepl.testing.cluster import Cluster, ConnectedFollower, FakeDaemon, FakeWorker, MemoryPositions
from synrepl.testing.network import MemoryEndpoint, Network

__all__ = [
    "Cluster",
    "ConnectedFollower",
    "FakeDaemon",
    "FakeWorker",
    "MemoryEndpoint",
    "MemoryPositions",
    "Network",
]
