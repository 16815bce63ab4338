"""Blocks of facts, encoded once for all relays that send the same facts."""

from collections.abc import Iterable
from typing import Final

from synrepl.streams.facts import Fact
from synrepl.streams.ndjson import encode_fact
from synrepl.wire.blocks import encode_blocks
from synrepl.wire.filter import ALL, Filter

__all__ = ["EPHEMERAL", "DURABLE", "BlockEncoder", "facts_block"]


def facts_block(kind: str, facts: Iterable[Fact]) -> bytes:
    """Encode facts as blocks; empty without facts."""
    return encode_blocks(kind, list(map(encode_fact, facts)))


class BlockEncoder:
    """Encodes the facts of a group that pass a filter: durable ones or ephemeral ones.

    Used with `Ring.lines`, which caches each encoder's result for a group.
    """

    def __init__(self, kind: str, query: Filter) -> None:
        self._kind = kind
        self._filter = query

    def lines(self, facts: Iterable[Fact]) -> bytes:
        """Encode these facts as one block."""
        is_kept = self._kind == "facts"
        return facts_block(
            self._kind, (fact for fact in facts if bool(fact.serial) is is_kept and self.passes(fact))
        )

    def passes(self, fact: Fact) -> bool:
        """Whether this fact passes the filter."""
        return self._filter.passes(fact.stream, fact.writer)


DURABLE: Final = BlockEncoder("facts", ALL)
EPHEMERAL: Final = BlockEncoder("ephemeral", ALL)
