"""Encoders: the log in the form that a reader understands, encoded once for all that are sent the same."""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final

from synrepl.base.history import AppendReceipt, EpochStart
from synrepl.replication.serving.feed import (
    EphemeralStep,
    Feed,
    PageStep,
    PositionsStep,
    TokenPage,
    read_page,
)
from synrepl.replication.strategies import ServeStrategy
from synrepl.storage.log import Log
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.wire.codec import Codec
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import Command

BATCH = b"batch "
"""Sent in place of the token with every row of a fact but the last."""

MAX_TOKEN: Final = len(b"%d " % 2**63)
"""The most bytes of a token in a line, with the space after it."""

_SOURCE: Final = attrgetter("stream", "writer")


class LogEncoder:
    """The form in which a reader gets the log.

    Readers with the same encoder share what is encoded of the ring (`Ring.lines`). Forms without receipts,
    epochs or ephemeral facts at the head leave those methods as they are.
    """

    @property
    def shared(self) -> "LogEncoder":
        """What encodes groups of the ring: once for all readers that have the same."""
        return self

    def lines(self, facts: Iterable[Fact]) -> bytes:
        """Encode facts that the readers are sent, ephemeral ones too."""
        raise NotImplementedError

    def receipts(self, receipts: Sequence[AppendReceipt]) -> bytes:
        """Encode receipts, which go before their facts."""
        return b""

    def epoch_start(self, start: EpochStart) -> bytes:
        """Encode the start of an epoch."""
        return b""

    def ephemeral(self, step: EphemeralStep) -> bytes:
        """Encode the ephemeral facts at the head."""
        return self.lines(step.facts)

    def positions(self, step: PositionsStep) -> bytes:
        """Encode the positions of streams."""
        return b""

    async def page(self, log: Log, feed: Feed, step: PageStep) -> bytes | None:
        """Read this page, encode it and advance the feed; None if the log was trimmed or replaced meanwhile.

        Raises `StorageError`.
        """
        page = await read_page(log, feed, step)
        return None if page is None else self.receipts(page.receipts) + self.lines(page.facts)

    async def token_page(self, feed: Feed, step: TokenPage) -> bytes | None:
        """Read this page of a stream by token, as a `FollowerFeed` asks for, and encode it."""
        raise NotImplementedError


class Encoder(LogEncoder):
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
        writes: Collection[Writer] | None = None,
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
        # By stream and writer: bare tuples, as one is made for each fact.
        self._prefixes: dict[tuple[str, str], bytes] = {}

    def streams(self) -> list[Stream[Any]]:
        """The streams that are sent, in the order in which their positions are announced."""
        return list(self._streams.values())

    def lines(self, facts: Iterable[Fact]) -> bytes:
        out: list[bytes] = []
        for (name, writer), run in groupby(facts, _SOURCE):
            stream = self._streams.get(name)
            if (
                stream is None
                or (self._writes is not None and (name, writer) not in self._writes)
                or (self._writers is not None and writer not in self._writers)
            ):
                continue
            together = list(run)
            if len(together) == 1 or not self._facts(stream, together, out):
                for fact in together:
                    self._fact(stream, fact, out)
        return b"".join(out)

    def command(self, command: Command) -> bytes:
        """The line of one command."""
        return self._codec.format(command) + b"\n"

    def _facts(self, stream: Stream[Any], facts: Sequence[Fact], out: list[bytes]) -> bool:
        """Write these facts of one writer as lines, as nearly all can be.

        Returns False, and does nothing, if a line may be too long, or a fact has no rows for this release.
        """
        prefix = self._prefix(facts[0].stream, facts[0].writer)
        left = self._codec.max_length - len(prefix) - MAX_TOKEN
        projected = stream.project_facts([fact.rows for fact in facts], self.dialect)
        if projected is None or not all(projected) or max(map(len, chain.from_iterable(projected))) > left:
            return False
        for fact, rows in zip(facts, projected, strict=True):
            for row in rows[:-1]:
                out += (prefix, BATCH, row, b"\n")
            out += (prefix, b"%d " % fact.token, rows[-1], b"\n")
        return True

    def _fact(self, stream: Stream[Any], fact: Fact, out: list[bytes]) -> None:
        rows = stream.project_fact(fact.rows, self.dialect)
        if not rows:
            if self.strategy.certifies:
                out.append(self._position(fact, fact.prev_token))
            return
        prefix = self._prefix(fact.stream, fact.writer)
        token = b"%d " % fact.token
        left = self._codec.max_length - len(prefix)
        if len(rows[-1]) + len(token) > left or any(len(row) + len(BATCH) > left for row in rows[:-1]):
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
