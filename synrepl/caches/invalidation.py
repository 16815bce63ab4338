"""What no longer holds: the one word that writers, vintages and caches exchange."""

import msgspec

__all__ = ["Invalidation"]


class Invalidation(msgspec.Struct, frozen=True):
    """An entry of a cache is to be dropped; with `key` None, all of them are.

    An empty key is a key like others: that of a cache without arguments.
    """

    cache: str
    key: tuple[str, ...] | None
