"""Pages of one writer's rows, assembled from the stored bytes."""

from collections.abc import Callable
from typing import Any

import msgspec

from synrepl.ports.interfaces import ILog
from synrepl.streams.stream import Stream

__all__ = ["RowPage", "read_page"]


class RowPage(msgspec.Struct, frozen=True):
    """A page: `updates` are ``[token,row]`` texts; up to the token `upto` no row is missing.

    `limited`: more rows follow.
    """

    updates: list[bytes]
    upto: int
    limited: bool

    def body(self, upto_name: bytes) -> bytes:
        """Encode the response, with `upto` under this name."""
        return b'{"updates":[%s],"%s":%d,"limited":%s}' % (
            b",".join(self.updates),
            upto_name,
            self.upto,
            b"true" if self.limited else b"false",
        )


async def read_page(
    log: ILog,
    stream: Stream[Any],
    writer: str,
    *,
    after: int,
    upto: int,
    limit: int,
    texts: Callable[[bytes], list[bytes]],
) -> RowPage:
    """Read the rows with ``after < token <= upto``; at most `limit`, unless one fact alone has more.

    `texts` returns the rows of a fact in the requested shape. A position beyond `upto` comes from an earlier
    run of the writer: an ephemeral stream then returns all rows of this run, other streams return none.
    """
    if after > upto:
        if not stream.ephemeral:
            return RowPage([], upto, False)
        after = 0
    facts, limited = await log.read_tokens(
        stream=stream.name, writer=writer, after=after, upto=upto, serial=log.serial, limit=limit
    )
    updates: list[bytes] = []
    last = after
    for fact in facts:
        rows = texts(fact.rows)
        if updates and len(updates) + len(rows) > limit and fact.token != last:
            limited = True
            break
        head = b"[%d," % fact.token
        updates += [head + row + b"]" for row in rows]
        last = fact.token
    return RowPage(updates, last if limited else upto, limited)
