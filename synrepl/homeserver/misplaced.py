"""Keys of caches at a level where Synapse does not look for them, and what follows; without I/O."""

from collections.abc import Sequence
from typing import Any, Final

from synrepl.homeserver.findings import RESTART_ALL, Finding
from synrepl.homeserver.merging import ProcessConfig, as_mapping

_NO_LIMIT: Final = (
    "nothing limits the memory of the caches: they grow as far as their factors let them, in each process"
)
MISPLACED: Final = {
    "cache_autotuning": ("caches.cache_autotuning", _NO_LIMIT),
    "global_factor": ("caches.global_factor", "all caches have the default factor, 0.5"),
    "per_cache_factors": ("caches.per_cache_factors", "these caches have the factor of all others"),
    "sync_response_cache_duration": (
        "caches.sync_response_cache_duration",
        "answers to /sync are kept as long as by default, 2 minutes since 1.62",
    ),
    "caches.event_cache_size": ("event_cache_size", "the cache of events has the default size, 10K"),
    **{
        f"{before}{name}": (f"caches.cache_autotuning.{name}", _NO_LIMIT)
        for before in ("", "caches.")
        for name in ("max_cache_memory_usage", "target_cache_memory_usage", "min_cache_ttl")
    },
}
"""Keys of caches at a level where Synapse does not look: that where it does, and what follows."""


def find_misplaced(configs: Sequence[ProcessConfig]) -> dict[str, Finding]:
    """Return a finding for each key of caches at the wrong level, if it is not at the right one too."""
    found: dict[str, Finding] = {}
    for config in configs:
        for key, (right, follows) in MISPLACED.items():
            if key in found or not _has(config, key) or _has(config, right):
                continue
            file = config.origin(key.partition(".")[0])
            found[key] = Finding(
                kind="misplaced_key",
                why=f"`{_path(key)}` in {file} is at a level where Synapse does not look for it: it ignores"
                f" it, and says nothing. So {follows}",
                remedy=f"move it to `{_path(right)}`, where Synapse reads it; what it sets then counts for"
                " each process that reads this file",
                cost=RESTART_ALL,
            )
    return found


def _path(key: str) -> str:
    return key.replace(".", ": ")


def _has(config: ProcessConfig, key: str) -> bool:
    first, *below = key.split(".")
    at: Any = config.values
    for name in (first, *below):
        at = as_mapping(at)
        if name not in at:
            return False
        at = at[name]
    return True
