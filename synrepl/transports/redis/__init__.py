"""Replication over Redis: two connections, one that hears the channels and one that publishes.

The names below are looked up when they are first used: behind them is txredisapi, importing which installs a
reactor, and an address must be readable without that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synrepl.transports.redis.interfaces import IRedisMember
    from synrepl.transports.redis.link import REDIS_KEEPALIVE, RedisLink, RedisState

_HOMES = {
    "REDIS_KEEPALIVE": "synrepl.transports.redis.link",
    "IRedisMember": "synrepl.transports.redis.interfaces",
    "RedisLink": "synrepl.transports.redis.link",
    "RedisState": "synrepl.transports.redis.link",
}

__all__ = ["REDIS_KEEPALIVE", "IRedisMember", "RedisLink", "RedisState"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'synrepl.transports.redis' has no attribute {name!r}")
    return getattr(import_module(home), name)
