"""Facts as blocks, written once for all relays that send the same."""

from collections.abc import Iterable
from typing import Final

from synrepl.streams.facts import Fact
from synrepl.streams.ndjson import encode_fact
from synrepl.wire.blocks import blocks
from synrepl.wire.filter import ALL, Filter

__all__ = ["EPHEMERAL", "KEPT", "BlockEncoder", "facts_block"]


def facts_block(kind: str, facts: Iterable[Fact]) -> bytes:
    """Blocks of facts; nothing at all when there is none."""
    return blocks(kind, list(map(encode_fact, facts)))


class BlockEncoder:
    """Writes those of a group's facts that pass a filter: kept ones, or the ephemeral ones.

    Used with `Ring.lines`, which remembers what one encoder made of a group.
    """

    def __init__(self, kind: str, wanted: Filter) -> None:
        self._kind = kind
        self._wanted = wanted

    def lines(self, facts: Iterable[Fact]) -> bytes:
        """The block of these facts."""
        is_kept = self._kind == "facts"
        return facts_block(
            self._kind, (fact for fact in facts if bool(fact.serial) is is_kept and self.passes(fact))
        )

    def passes(self, fact: Fact) -> bool:
        """Whether the filter lets this fact through."""
        return self._wanted.passes(fact.stream, fact.writer)


KEPT: Final = BlockEncoder("facts", ALL)
EPHEMERAL: Final = BlockEncoder("ephemeral", ALL)
