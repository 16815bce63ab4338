"""Serving strategies: what a server sends to followers of each release.

Before 1.13 a follower requests each stream by name and token. The server pushes the missed facts, then
POSITION. From 1.13 on a follower receives every row from the moment it connects; REPLICATE only requests
positions, and the follower fetches missed facts over HTTP (docs/reference/peers.md#tcp-replicate). From 1.22
on POSITION also says where it continues from.
"""

from typing import Final

import msgspec

from synrepl.wire.dialect import Dialect, Span, span

__all__ = ["ServeStrategy", "serving"]


class ServeStrategy(msgspec.Struct, frozen=True):
    """How followers of some releases are served.

    `pulls`: the follower fetches missed facts over HTTP. `certifies`: POSITION says where it continues from,
    so it can advance over facts that hold nothing for this follower. `is_replica`: the peer is a replica, not
    a follower.
    """

    pulls: bool
    certifies: bool
    is_replica: bool = False


_TABLE: Final[tuple[tuple[Span, ServeStrategy], ...]] = (
    (span(until="1.13"), ServeStrategy(pulls=False, certifies=False)),
    (span(since="1.13", until="1.22"), ServeStrategy(pulls=True, certifies=False)),
    (span(since="1.22", until="999.0"), ServeStrategy(pulls=True, certifies=True)),
    (span(since="999.0"), ServeStrategy(pulls=True, certifies=True, is_replica=True)),
)


def serving(dialect: Dialect) -> ServeStrategy:
    """The strategy for this dialect."""
    return next(strategy for releases, strategy in _TABLE if dialect.release in releases)
