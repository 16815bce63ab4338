"""Strategies: how followers of each release are served, and how servers of each release are followed.

Before 1.13 a follower requests each stream by name and token. The server pushes the missed facts, then
POSITION. From 1.13 on a follower receives every row of Synapse's streams from the moment it connects;
REPLICATE requests positions and declared streams, and the follower fetches missed facts over HTTP
(docs/reference/peers.md#tcp-replicate). From 1.22 on POSITION also says where it continues from.
"""

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from synrepl.wire.commands import Replicate
from synrepl.wire.dialect import Dialect, Span, span

_PUSHED_UNORDERED: Final = frozenset(
    # Masters before 1.13 push these with descending tokens.
    {"account_data", "tag_account_data", "presence", "federation"}
)

_OPTIONAL: Final = frozenset(
    # Masters that send federation traffic themselves lack these streams, and close the connection on a
    # request.
    {"federation"}
)


class ServeStrategy(msgspec.Struct, frozen=True):
    """How followers of some releases are served.

    `pulls`: the follower fetches missed facts over HTTP. `certifies`: POSITION says where it continues from,
    so that the follower can skip facts without rows for its release. `is_replica`: the peer is a replica, not
    a follower.
    """

    pulls: bool
    certifies: bool
    is_replica: bool = False


class FollowStrategy(msgspec.Struct, frozen=True):
    """How servers of some releases are followed.

    `pushed`: the server pushes missed facts and ends them with POSITION. `shared`: there is no server but a
    shared channel, on which every writer publishes its own facts and answers REPLICATE for itself.
    """

    pushed: bool
    shared: bool = False

    def requests(
        self,
        streams: Collection[str],
        *,
        named: Collection[str] = (),
        everything: bool,
        token: Callable[[str], int | None],
        earliest: bool,
    ) -> list[Replicate]:
        """The REPLICATE commands to send on connecting.

        `named` are the declared streams, which a server sends only on request. `token` returns the position
        to continue a stream from, None if there is none. `everything`: all streams of the server are
        followed, but not those without a position that it may lack: a request would close the connection.
        """
        if not self.pushed:
            return [Replicate(text="" if self.shared else " ".join(f"+{name}" for name in named))]
        known = {name: at for name in streams if (at := token(name)) is not None}
        start = 0 if earliest else None
        if everything and not known:
            return [Replicate(stream="ALL", token=start)]
        names = [name for name in streams if not everything or name in known or name not in _OPTIONAL]
        return [Replicate(stream=name, token=known.get(name, start)) for name in names]

    def keeps_order(self, stream: str, ordered: bool) -> bool:
        """Whether a token that is not above the last one must be a repetition."""
        return ordered and not (self.pushed and stream in _PUSHED_UNORDERED)


_PULL: Final = FollowStrategy(pushed=False)

_TABLE: Final[tuple[tuple[Span, ServeStrategy, FollowStrategy], ...]] = (
    (span(until="1.13"), ServeStrategy(pulls=False, certifies=False), FollowStrategy(pushed=True)),
    (span(since="1.13", until="1.22"), ServeStrategy(pulls=True, certifies=False), _PULL),
    (span(since="1.22", until="999.0"), ServeStrategy(pulls=True, certifies=True), _PULL),
    (span(since="999.0"), ServeStrategy(pulls=True, certifies=True, is_replica=True), _PULL),
)

SHARED: Final = FollowStrategy(pushed=False, shared=True)
"""The strategy on a broker, for all releases."""


def serving(dialect: Dialect) -> ServeStrategy:
    """The strategy for followers of this dialect."""
    return next(serve for releases, serve, _ in _TABLE if dialect.release in releases)


def following(dialect: Dialect) -> FollowStrategy:
    """The strategy for servers of this dialect."""
    return next(follow for releases, _, follow in _TABLE if dialect.release in releases)
