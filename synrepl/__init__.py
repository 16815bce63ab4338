"""synrepl replicates a homeserver's streams from the processes that write them to those that need them.

The public API is the names in `__all__`, the streams and rows in `synrepl.streams`, the commands in
`synrepl.wire.commands`, and `synrepl.testing`; everything else may move (docs/reference/library.md).
Each name is imported on first use: so importing this package installs no reactor, and its pure core
(`synrepl.wire`, `synrepl.streams`) needs no Twisted.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synrepl.caches.changes import Changes
    from synrepl.caches.vintage import Invalidation, Vintage
    from synrepl.config import Settings
    from synrepl.errors import (
        ConfigError,
        GapError,
        LocalProtocolError,
        NeverAllocated,
        NotConnected,
        ProtocolError,
        RemoteProtocolError,
        ReplicationError,
        RowError,
        StorageError,
        UnknownStream,
        WaitTimeout,
    )
    from synrepl.ports.caches import Caches
    from synrepl.ports.interfaces import IPositionStore
    from synrepl.ports.metrics import Metrics
    from synrepl.replication.follower.follower import Follower
    from synrepl.replication.follower.follower_event import FollowerEvent
    from synrepl.replication.follower.updates import Updates
    from synrepl.replication.publisher import Publisher
    from synrepl.services import connect, serve
    from synrepl.storage.id_tables import IdStream, IdTable
    from synrepl.storage.ids.generator import (
        AllocatedIds,
        MultiWriterIdGenerator,
        NotAWriter,
        StreamIdGenerator,
    )
    from synrepl.storage.ids.transactions import transact
    from synrepl.storage.ids.writer_session import WriterSession
    from synrepl.storage.invalidations import InvalidationWriter
    from synrepl.storage.position_files import FilePositions
    from synrepl.storage.sql_positions import SQLPositions
    from synrepl.streams.positions import VClock
    from synrepl.streams.stream import Gone, Since, Stream, row
    from synrepl.streams.table import StreamTable
    from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, Dialect

_HOMES = {
    "AllocatedIds": "synrepl.storage.ids.generator",
    "CURRENT": "synrepl.wire.dialect",
    "Caches": "synrepl.ports.caches",
    "Changes": "synrepl.caches.changes",
    "ConfigError": "synrepl.errors",
    "Dialect": "synrepl.wire.dialect",
    "FilePositions": "synrepl.storage.position_files",
    "Follower": "synrepl.replication.follower.follower",
    "FollowerEvent": "synrepl.replication.follower.follower_event",
    "GapError": "synrepl.errors",
    "Gone": "synrepl.streams.stream",
    "IPositionStore": "synrepl.ports.interfaces",
    "IdStream": "synrepl.storage.id_tables",
    "IdTable": "synrepl.storage.id_tables",
    "Invalidation": "synrepl.caches.vintage",
    "InvalidationWriter": "synrepl.storage.invalidations",
    "LEGACY": "synrepl.wire.dialect",
    "LocalProtocolError": "synrepl.errors",
    "MIDDLE": "synrepl.wire.dialect",
    "Metrics": "synrepl.ports.metrics",
    "MultiWriterIdGenerator": "synrepl.storage.ids.generator",
    "NATIVE": "synrepl.wire.dialect",
    "NeverAllocated": "synrepl.errors",
    "NotAWriter": "synrepl.storage.ids.generator",
    "NotConnected": "synrepl.errors",
    "ProtocolError": "synrepl.errors",
    "Publisher": "synrepl.replication.publisher",
    "RemoteProtocolError": "synrepl.errors",
    "ReplicationError": "synrepl.errors",
    "RowError": "synrepl.errors",
    "SQLPositions": "synrepl.storage.sql_positions",
    "Settings": "synrepl.config",
    "Since": "synrepl.streams.stream",
    "StorageError": "synrepl.errors",
    "Stream": "synrepl.streams.stream",
    "StreamIdGenerator": "synrepl.storage.ids.generator",
    "StreamTable": "synrepl.streams.table",
    "UnknownStream": "synrepl.errors",
    "Updates": "synrepl.replication.follower.updates",
    "VClock": "synrepl.streams.positions",
    "Vintage": "synrepl.caches.vintage",
    "WaitTimeout": "synrepl.errors",
    "WriterSession": "synrepl.storage.ids.writer_session",
    "connect": "synrepl.services",
    "row": "synrepl.streams.stream",
    "serve": "synrepl.services",
    "transact": "synrepl.storage.ids.transactions",
}

__all__ = [
    "CURRENT",
    "LEGACY",
    "MIDDLE",
    "NATIVE",
    "AllocatedIds",
    "Caches",
    "Changes",
    "ConfigError",
    "Dialect",
    "FilePositions",
    "Follower",
    "FollowerEvent",
    "GapError",
    "Gone",
    "IPositionStore",
    "IdStream",
    "IdTable",
    "Invalidation",
    "InvalidationWriter",
    "LocalProtocolError",
    "Metrics",
    "MultiWriterIdGenerator",
    "NeverAllocated",
    "NotAWriter",
    "NotConnected",
    "ProtocolError",
    "Publisher",
    "RemoteProtocolError",
    "ReplicationError",
    "RowError",
    "SQLPositions",
    "Settings",
    "Since",
    "StorageError",
    "Stream",
    "StreamIdGenerator",
    "StreamTable",
    "UnknownStream",
    "Updates",
    "VClock",
    "Vintage",
    "WaitTimeout",
    "WriterSession",
    "connect",
    "row",
    "serve",
    "transact",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'synrepl' has no attribute {name!r}")
    return getattr(import_module(home), name)
