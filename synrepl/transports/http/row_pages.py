"""Pages of one writer's rows, built from the bytes that the log keeps."""

from collections.abc import Callable
from typing import Any

import msgspec

from synrepl.ports.interfaces import ILog
from synrepl.streams.stream import Stream

__all__ = ["RowPage", "read_page"]


class RowPage(msgspec.Struct, frozen=True):
    """`updates` holds ``[token,row]`` texts; `upto` is the token up to which nothing is missing.

    `limited`: there is more after it.
    """

    updates: list[bytes]
    upto: int
    limited: bool

    def body(self, upto_name: bytes) -> bytes:
        """The answer, in which `upto` goes by this name."""
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
    """The rows with ``after < token <= upto``, at most `limit` of them unless one fact alone has more.

    `texts` gives the rows to show of a fact. Who comes from beyond `upto` knew a former life of the writer:
    of a stream that is kept in memory alone, all of this life is news to him; elsewhere there is nothing.
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
