"""The truth about copies of one log: every history that a primary ever had, as a tree."""

from collections.abc import Callable, Sequence

from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from tests.replicas.nodes import FakeNode

__all__ = ["Content", "Histories", "content"]

Content = tuple[str, bytes]
"""A fact's content: its stream and its rows, which no other fact of a simulation has."""


def content(fact: Fact) -> Content:
    """Return the content of this fact."""
    return fact.stream, fact.rows


class Histories:
    """The facts of all primaries by digest, each linked to its predecessor.

    `report` is called with each contradiction.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._facts: dict[str, tuple[str, Fact]] = {}
        self._digests: dict[str, str] = {}

    def chain(self, digest: str) -> list[Fact]:
        """All facts up to the one with this digest."""
        facts: list[Fact] = []
        while digest != EMPTY:
            digest, fact = self._facts[digest]
            facts.append(fact)
        return facts[::-1]

    def continues(self, digest: str, before: str) -> bool:
        """Whether the history up to `digest` begins with that up to `before`."""
        if before == EMPTY:
            return True
        if not (self.knows(digest) and self.knows(before)):
            return False
        serial = self._facts[before][1].serial
        while digest not in (EMPTY, before):
            digest, fact = self._facts[digest]
            if fact.serial <= serial:
                return False
        return digest == before

    def knows(self, digest: str) -> bool:
        """Whether a primary was ever at this digest."""
        return digest == EMPTY or digest in self._facts

    def note_position(self, node: FakeNode, digest: str) -> None:
        """Note the digest of the last fact on the disk of a node."""
        self._digests[node.name] = digest

    def position(self, node: FakeNode) -> str:
        """The digest of the last fact that a node is known to have."""
        return self._digests.get(node.name, EMPTY)

    def has(self, fact: Fact) -> bool:
        """Whether a primary has committed exactly this fact."""
        return fact.digest in self._facts and self._facts[fact.digest][1] == fact

    def check_copy(self, node: FakeNode) -> None:
        """Check that the copy of a node is true and complete, after its start or a new copy."""
        position, trimmed_upto = node.log.position, node.log.head.trimmed_upto
        facts = node.engine.facts
        is_filtered = "filter" in node.log.notes
        self.note_position(node, position.digest)
        if node.roles.role != "replica":
            self.add_durable(node)
        if not self.knows(position.digest):
            self._report(f"half copy: {node.name} is at {position}, where no primary ever was")
            return
        chain = self.chain(position.digest)
        passes = _filter_of(node)
        expected = [fact for fact in chain if fact.serial > trimmed_upto.serial and passes(fact)]
        actual = [fact for fact in facts if fact.serial > trimmed_upto.serial]
        if actual != expected:
            self._report(
                f"half copy: {node.name} has {_serials(actual)} beyond {trimmed_upto.serial}, "
                f"not {_serials(expected)}"
            )
        if not {fact.digest for fact in facts} <= {fact.digest for fact in chain}:
            self._report(f"{node.name} holds facts that are not of its own history")
        if not is_filtered and verify(actual, trimmed_upto.digest) is not None:
            self._report(f"digests: what {node.name} holds is not one chain")

    def add_durable(self, node: FakeNode) -> None:
        """Add the durable facts of a node that accepts facts: they are true, acknowledged or not."""
        trimmed_upto = node.engine.bounds.trimmed_upto
        self._add(
            [fact for fact in node.engine.facts if fact.serial > trimmed_upto.serial], trimmed_upto.digest
        )

    def add_beyond(self, node: FakeNode) -> None:
        """The same of a node whose disk is damaged: the whole facts beyond those that are known."""
        known = self.position(node)
        serial = 0 if known == EMPTY else self._facts[known][1].serial
        self._add([fact for fact in node.engine.readable_facts if fact.serial > serial], known)

    def on_committed(self, node: FakeNode, facts: Sequence[Fact]) -> None:
        """Check the facts that a node has committed."""
        if not facts[0].serial:
            return
        before = self._digests.get(node.name, EMPTY)
        self._digests[node.name] = facts[-1].digest
        if node.roles.role != "replica":
            self._add(facts, before)
            return
        is_filtered = "filter" in node.log.notes
        for fact in facts:
            known = self._facts.get(fact.digest)
            if known is None or known[1] != fact or (not is_filtered and known[0] != before):
                self._report(f"{node.name} shows {fact}, which no primary committed")
            before = fact.digest

    def _add(self, facts: Sequence[Fact], before: str) -> None:
        for fact in facts:
            self._facts[fact.digest] = (before, fact)
            before = fact.digest


def _filter_of(node: FakeNode) -> Callable[[Fact], bool]:
    query = node.publisher.read_gate.filter
    return lambda fact: query.streams is None or fact.stream in query.streams


def _serials(facts: Sequence[Fact]) -> str:
    return f"{facts[0].serial} to {facts[-1].serial} ({len(facts)})" if facts else "none"
