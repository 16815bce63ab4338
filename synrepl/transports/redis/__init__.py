"""Replication over Redis, with two connections: one subscribes, one publishes.

These names are imported on first use: they need txredisapi, whose import installs a reactor, and an address
must be readable without one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synrepl.transports.redis.interfaces import IRedisMember
    from synrepl.transports.redis.link import REDIS_KEEPALIVE, RedisLink, RedisState

_MODULES = {
    "REDIS_KEEPALIVE": "synrepl.transports.redis.link",
    "IRedisMember": "synrepl.transports.redis.interfaces",
    "RedisLink": "synrepl.transports.redis.link",
    "RedisState": "synrepl.transports.redis.link",
}

__all__ = ["REDIS_KEEPALIVE", "IRedisMember", "RedisLink", "RedisState"]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'synrepl.transports.redis' has no attribute {name!r}")
    return getattr(import_module(module), name)
