"""Invalidations: the messages from writers and vintages to caches."""

import msgspec

__all__ = ["Invalidation"]


class Invalidation(msgspec.Struct, frozen=True):
    """A request to drop one entry of a cache, or all of them if `key` is None.

    The empty key is an ordinary key: that of a cache without arguments.

    >>> Invalidation("get_user_by_id", ("@ada:hs",)).key
    ('@ada:hs',)
    """

    cache: str
    key: tuple[str, ...] | None
