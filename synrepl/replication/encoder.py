"""Encoders: facts as lines of one release or as blocks, once for all readers that are sent the same."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from synrepl.replication.strategies import ServeStrategy
from synrepl.streams.facts import Fact, encode_fact
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.blocks import encode_blocks
from synrepl.wire.codec import Codec
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import Command

BATCH = b"batch "
"""Sent in place of the token with every row of a fact but the last."""


class Encoder:
    """Formats facts for one release.

    Streams, fields and rows that the release does not know are left out. In place of a fact without known
    rows, a POSITION advances the reader (if `strategy.certifies`). In place of a fact with a row too long for
    a line, a POSITION makes the reader fetch the fact (if `strategy.pulls`), or `withheld` is called with the
    fact and the reason. `writes` limits facts to these streams and writers, `served` to those that pass this
    filter. `named`: streams that are sent only on request, and were requested.
    """

    def __init__(
        self,
        table: StreamTable,
        codec: Codec,
        strategy: ServeStrategy,
        *,
        withheld: Callable[[Fact, str], None],
        writes: Collection[tuple[str, str]] | None = None,
        served: Filter = ALL,
        named: Collection[str] = (),
    ) -> None:
        self.dialect = codec.dialect
        self.strategy = strategy
        self._codec = codec
        self._writes = None if writes is None else frozenset(writes)
        self._writers = served.writers
        self._streams = {
            stream.name: stream
            for stream in table.known_to(codec.dialect)
            if (not stream.on_request or stream.name in named)
            and (writes is None or any(stream.name == name for name, _ in writes))
            and (served.streams is None or stream.name in served.streams)
        }
        self._withheld = withheld
        self._prefixes: dict[tuple[str, str], bytes] = {}

    def streams(self) -> list[Stream[Any]]:
        """The streams that are sent, in the order in which their positions are announced."""
        return list(self._streams.values())

    def lines(self, facts: Iterable[Fact]) -> bytes:
        """The lines of the facts whose stream and writer are sent."""
        out: list[bytes] = []
        for fact in facts:
            stream = self._streams.get(fact.stream)
            if stream is not None and (self._writes is None or (fact.stream, fact.writer) in self._writes):
                self._fact(stream, fact, out)
        return b"".join(out)

    def command(self, command: Command) -> bytes:
        """The line of one command."""
        return self._codec.format(command) + b"\n"

    def _fact(self, stream: Stream[Any], fact: Fact, out: list[bytes]) -> None:
        if self._writers is not None and fact.writer not in self._writers:
            return
        rows = stream.project_fact(fact.rows, self.dialect)
        if not rows:
            if self.strategy.certifies:
                out.append(self._position(fact, fact.prev_token))
            return
        prefix = self._prefix(fact.stream, fact.writer)
        token = b"%d " % fact.token
        room = self._codec.max_length - len(prefix)
        if len(rows[-1]) + len(token) > room or any(len(row) + len(BATCH) > room for row in rows[:-1]):
            if self.strategy.pulls:
                out.append(self._position(fact, fact.token))
            else:
                self._withheld(fact, "a row is too long for a line")
            return
        for row in rows[:-1]:
            out += (prefix, BATCH, row, b"\n")
        out += (prefix, token, rows[-1], b"\n")

    def _position(self, fact: Fact, prev_token: int) -> bytes:
        position = Position(stream=fact.stream, instance=fact.writer, prev_token=prev_token, token=fact.token)
        return self.command(position)

    def _prefix(self, stream: str, writer: str) -> bytes:
        try:
            return self._prefixes[stream, writer]
        except KeyError:
            sample = self._codec.format(Rdata(stream=stream, instance=writer, token=None, row=b"0"))
            prefix = self._prefixes[stream, writer] = sample.removesuffix(BATCH + b"0")
            return prefix


def facts_block(kind: str, facts: Iterable[Fact]) -> bytes:
    """Encode facts as blocks; empty without facts."""
    return encode_blocks(kind, list(map(encode_fact, facts)))


class BlockEncoder:
    """Encodes the facts that pass a filter, durable ones and ephemeral ones in blocks of their own.

    Used with `Ring.lines`, which caches each encoder's result for a group.
    """

    def __init__(self, query: Filter) -> None:
        self._filter = query

    def lines(self, facts: Iterable[Fact]) -> bytes:
        """Encode the facts that pass the filter."""
        passes = self._filter.passes
        passed = [fact for fact in facts if passes(fact.stream, fact.writer)]
        return facts_block("facts", (fact for fact in passed if fact.serial)) + facts_block(
            "ephemeral", (fact for fact in passed if not fact.serial)
        )


OPEN = BlockEncoder(ALL)
