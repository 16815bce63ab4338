"""Caches of a worker that changes in other processes invalidate, and the rows that announce such changes.

Pure: no network, no clock, no reactor.
"""

from synrepl.caches.cached import Cached, CachedCoroutine, CachedFunction
from synrepl.caches.changes import Changes
from synrepl.caches.counters import CacheInfo
from synrepl.caches.entries import IWaiter
from synrepl.caches.lint import CacheWarning, lint
from synrepl.caches.registry import CacheRegistry
from synrepl.caches.vintage import Drop, Invalidation, Unreadable, Vintage
from synrepl.caches.vintages import LEGACY, NEWEST

__all__ = [
    "LEGACY",
    "NEWEST",
    "CacheInfo",
    "CacheRegistry",
    "Cached",
    "CachedCoroutine",
    "CachedFunction",
    "Changes",
    "Drop",
    "CacheWarning",
    "IWaiter",
    "Invalidation",
    "Unreadable",
    "Vintage",
    "lint",
]
