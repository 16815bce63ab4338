"""Encoder of what replicas are sent: facts and metadata in blocks."""

from collections.abc import Iterable, Sequence

from synrepl.base.history import AppendReceipt, EpochStart
from synrepl.replicas.relay.snapshot_codec import meta_block
from synrepl.replicas.wire.blocks import encode_block, encode_blocks
from synrepl.replication.serving.feed import EphemeralStep
from synrepl.replication.serving.text_pages import LineEncoder
from synrepl.streams.facts import Fact, encode_facts
from synrepl.wire.filter import ALL, Filter


def facts_block(kind: str, facts: Iterable[Fact]) -> bytes:
    """Encode facts as blocks; empty without facts."""
    return encode_blocks(kind, encode_facts(facts))


class BlockEncoder(LineEncoder):
    """Encodes the facts that pass a filter, kept ones and ephemeral ones in blocks of their own."""

    def __init__(self, query: Filter) -> None:
        self._filter = query

    def text(self, lines: bytes) -> bytes:
        return encode_blocks("facts", lines)

    def lines(self, facts: Iterable[Fact]) -> bytes:
        passes = self._filter.passes
        passed = [fact for fact in facts if passes(fact.stream, fact.writer)]
        return facts_block("facts", (fact for fact in passed if fact.serial)) + facts_block(
            "ephemeral", (fact for fact in passed if not fact.serial)
        )

    def receipts(self, receipts: Sequence[AppendReceipt]) -> bytes:
        return meta_block(receipts=receipts) if receipts else b""

    def epoch_start(self, start: EpochStart) -> bytes:
        return meta_block([start])

    def ephemeral(self, step: EphemeralStep) -> bytes:
        # Sent even without facts: a writer that is not listed has restarted.
        return encode_block("held", len(step.facts), encode_facts(step.facts))


OPEN = BlockEncoder(ALL)
