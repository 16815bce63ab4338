"""Blocks of facts, encoded once for all relays that send the same facts."""

from collections.abc import Iterable

from synrepl.streams.facts import Fact, encode_fact
from synrepl.wire.blocks import encode_blocks
from synrepl.wire.filter import ALL, Filter

__all__ = ["OPEN", "BlockEncoder", "facts_block"]


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
        """Encode these facts."""
        passes = self._filter.passes
        passed = [fact for fact in facts if passes(fact.stream, fact.writer)]
        return facts_block("facts", (fact for fact in passed if fact.serial)) + facts_block(
            "ephemeral", (fact for fact in passed if not fact.serial)
        )


OPEN = BlockEncoder(ALL)
