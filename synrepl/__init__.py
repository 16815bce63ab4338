"""synrepl moves a homeserver's streams from the processes that write them to the processes that need them.

The names below are the public surface; whatever is not here may move. Importing this package installs no
reactor, and its pure core (`synrepl.wire`, `synrepl.streams`) needs no Twisted, so names are looked up when
they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synrepl.config import Settings
    from synrepl.connecting import connect, serve
    from synrepl.errors import (
        ConfigError,
        GapError,
        LocalProtocolError,
        NotConnected,
        ProtocolError,
        RemoteProtocolError,
        ReplicationError,
        RowError,
        StorageError,
        UnknownStream,
    )
    from synrepl.ports.metrics import Metrics
    from synrepl.replication.follower import Event, Follower
    from synrepl.replication.publisher import Publisher
    from synrepl.replication.updates import Updates
    from synrepl.streams.declare import Stream, row
    from synrepl.streams.positions import VClock
    from synrepl.streams.table import StreamTable
    from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, Dialect

_HOMES = {
    "CURRENT": "synrepl.wire.dialect",
    "ConfigError": "synrepl.errors",
    "Dialect": "synrepl.wire.dialect",
    "Event": "synrepl.replication.follower",
    "Follower": "synrepl.replication.follower",
    "GapError": "synrepl.errors",
    "LEGACY": "synrepl.wire.dialect",
    "LocalProtocolError": "synrepl.errors",
    "MIDDLE": "synrepl.wire.dialect",
    "Metrics": "synrepl.ports.metrics",
    "NATIVE": "synrepl.wire.dialect",
    "NotConnected": "synrepl.errors",
    "ProtocolError": "synrepl.errors",
    "Publisher": "synrepl.replication.publisher",
    "RemoteProtocolError": "synrepl.errors",
    "ReplicationError": "synrepl.errors",
    "RowError": "synrepl.errors",
    "Settings": "synrepl.config",
    "StorageError": "synrepl.errors",
    "Stream": "synrepl.streams.declare",
    "StreamTable": "synrepl.streams.table",
    "UnknownStream": "synrepl.errors",
    "Updates": "synrepl.replication.updates",
    "VClock": "synrepl.streams.positions",
    "connect": "synrepl.connecting",
    "row": "synrepl.streams.declare",
    "serve": "synrepl.connecting",
}

__all__ = [
    "CURRENT",
    "LEGACY",
    "MIDDLE",
    "NATIVE",
    "ConfigError",
    "Dialect",
    "Event",
    "Follower",
    "GapError",
    "LocalProtocolError",
    "Metrics",
    "NotConnected",
    "ProtocolError",
    "Publisher",
    "RemoteProtocolError",
    "ReplicationError",
    "RowError",
    "Settings",
    "StorageError",
    "Stream",
    "StreamTable",
    "UnknownStream",
    "Updates",
    "VClock",
    "connect",
    "row",
    "serve",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'synrepl' has no attribute {name!r}")
    return getattr(import_module(home), name)
