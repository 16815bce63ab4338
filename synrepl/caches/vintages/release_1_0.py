"""The vintage of Synapse 1.0, which has no aliases for purged history and deleted rooms."""

from collections.abc import Iterator

from synrepl.caches.vintage import Drop, Vintage

__all__ = ["LEGACY"]

LEGACY = Vintage("LEGACY")


@LEGACY.alias("cs_cache_fake")
def current_state(room_id: str, *changed: str) -> Iterator[Drop]:
    """The state of a room changed, including the membership of `changed`."""
    for server in sorted({user.partition(":")[2] for user in changed}):
        yield "is_host_joined", (room_id, server)
        yield "was_host_joined", (room_id, server)
    for cache in ("get_users_in_room", "get_room_summary", "get_current_state_ids"):
        yield cache, (room_id,)


LEGACY.seal()
