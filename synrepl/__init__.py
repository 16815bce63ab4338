"""synrepl replicates a homeserver's streams from the processes that write them to those that need them.

The public API is the names in `__all__`, the streams and rows in `synrepl.streams`, the commands in
`synrepl.wire.commands`, and `synrepl.testing`; everything else may move (docs/reference/library.md).
Each name is imported on first use: so importing this package installs no reactor, and its pure core
(`synrepl.wire`, `synrepl.streams`) needs no Twisted.
A name of a room that is not installed raises `ImportError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synrepl.base.interfaces import IPositionStore
    from synrepl.base.metrics import Metrics
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
    from synrepl.ids.generator import (
        AllocatedIds,
        MultiWriterIdGenerator,
        NotAWriter,
        StreamIdGenerator,
    )
    from synrepl.ids.invalidation_writer import InvalidationWriter
    from synrepl.ids.transactions import transact
    from synrepl.ids.writer_session import WriterSession
    from synrepl.replication.follower.caches import Caches
    from synrepl.replication.follower.follower import Follower
    from synrepl.replication.follower.updates import FollowerEvent, Updates
    from synrepl.replication.serving.publisher import Publisher
    from synrepl.services import connect, serve
    from synrepl.storage.id_tables.layout import IdStream, IdTable
    from synrepl.storage.position_files import FilePositions
    from synrepl.storage.sql_positions import SQLPositions
    from synrepl.streams.positions import VClock
    from synrepl.streams.stream import Gone, Since, Stream, row
    from synrepl.streams.table import StreamTable
    from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, Dialect

_NAMES = {
    "synrepl.caches.changes": "Changes",
    "synrepl.caches.vintage": "Invalidation Vintage",
    "synrepl.config": "Settings",
    "synrepl.errors": "ConfigError GapError LocalProtocolError NeverAllocated NotConnected ProtocolError"
    " RemoteProtocolError ReplicationError RowError StorageError UnknownStream WaitTimeout",
    "synrepl.replication.follower.caches": "Caches",
    "synrepl.base.interfaces": "IPositionStore",
    "synrepl.base.metrics": "Metrics",
    "synrepl.replication.follower.follower": "Follower",
    "synrepl.replication.follower.updates": "FollowerEvent Updates",
    "synrepl.replication.serving.publisher": "Publisher",
    "synrepl.services": "connect serve",
    "synrepl.storage.id_tables.layout": "IdStream IdTable",
    "synrepl.ids.generator": "AllocatedIds MultiWriterIdGenerator NotAWriter StreamIdGenerator",
    "synrepl.ids.transactions": "transact",
    "synrepl.ids.writer_session": "WriterSession",
    "synrepl.ids.invalidation_writer": "InvalidationWriter",
    "synrepl.storage.position_files": "FilePositions",
    "synrepl.storage.sql_positions": "SQLPositions",
    "synrepl.streams.positions": "VClock",
    "synrepl.streams.stream": "Gone Since Stream row",
    "synrepl.streams.table": "StreamTable",
    "synrepl.wire.dialect": "CURRENT Dialect LEGACY MIDDLE NATIVE",
}
"""The public names by the module that has them: of the core, and of the room `ids`."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

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


if not TYPE_CHECKING:
    # A checker would take any name, so that it would find no mistyped one.

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            # Modules have lower case names, and Python asks for some that are not there.
            hint = "" if name.startswith("_") else import_module("synrepl.errors").suggest(name, __all__)
            raise AttributeError(f"module 'synrepl' has no attribute {name!r}{hint}")
        try:
            return getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            folder = ".".join(home.split(".")[:2])
            if error.name not in (folder, home):
                raise
            room = folder.removeprefix("synrepl.")
            raise ImportError(f"{name} belongs to {room}, which is not installed") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
