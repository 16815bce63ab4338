"""What really happened to copies of one log: every history that a primary ever had, as a tree."""

from collections.abc import Callable, Sequence

from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from synrepl.testing.replicas import FakeNode

__all__ = ["Content", "Histories", "content"]

Content = tuple[str, bytes]
"""A fact by what it says: its stream and its rows, which no other fact of a simulation has."""


def content(fact: Fact) -> Content:
    """What this fact says."""
    return fact.stream, fact.rows


class Histories:
    """Facts by their digests, each after the one that it follows.

    `wrong` is told of what no primary ever had.
    """

    def __init__(self, wrong: Callable[[str], None]) -> None:
        self._wrong = wrong
        self._facts: dict[str, tuple[str, Fact]] = {}
        self._at: dict[str, str] = {}

    def chain(self, digest: str) -> list[Fact]:
        """All facts up to the one with this digest."""
        facts: list[Fact] = []
        while digest != EMPTY:
            digest, fact = self._facts[digest]
            facts.append(fact)
        return facts[::-1]

    def knows(self, digest: str) -> bool:
        """Whether a primary ever stood there."""
        return digest == EMPTY or digest in self._facts

    def looked_at(self, node: FakeNode) -> None:
        """A node has started, or has become another copy: what it holds must be true, and whole."""
        position, trimmed_upto = node.log.position, node.log.trimmed_upto
        facts = node.engine.facts
        is_filtered = "filter" in node.log.notes
        self._at[node.name] = position.digest
        if node.roles.role != "replica":
            self.kept(node)
        if not self.knows(position.digest):
            self._wrong(f"half copy: {node.name} stands at {position}, where no primary ever was")
            return
        chain = self.chain(position.digest)
        passes = _passing(node)
        expected = [fact for fact in chain if fact.serial > trimmed_upto.serial and passes(fact)]
        held = [fact for fact in facts if fact.serial > trimmed_upto.serial]
        if held != expected:
            self._wrong(
                f"half copy: {node.name} has {_serials(held)} beyond {trimmed_upto.serial}, "
                f"not {_serials(expected)}"
            )
        if not {fact.digest for fact in facts} <= {fact.digest for fact in chain}:
            self._wrong(f"{node.name} holds facts that are not of its own history")
        if not is_filtered and verify(held, trimmed_upto.digest) is not None:
            self._wrong(f"digests: what {node.name} holds is not one chain")

    def kept(self, node: FakeNode) -> None:
        """What is on the disk of a node that takes facts is true, whether or not somebody saw it."""
        trimmed_upto = node.engine._trimmed_upto
        self._add(
            [fact for fact in node.engine.facts if fact.serial > trimmed_upto.serial], trimmed_upto.digest
        )

    def committed(self, node: FakeNode, facts: Sequence[Fact]) -> None:
        """A node shows these facts."""
        if not facts[0].serial:
            return
        before = self._at.get(node.name, EMPTY)
        self._at[node.name] = facts[-1].digest
        if node.roles.role != "replica":
            self._add(facts, before)
            return
        is_filtered = "filter" in node.log.notes
        for fact in facts:
            known = self._facts.get(fact.digest)
            if known is None or known[1] != fact or (not is_filtered and known[0] != before):
                self._wrong(f"{node.name} shows {fact}, which no primary committed")
            before = fact.digest

    def _add(self, facts: Sequence[Fact], before: str) -> None:
        for fact in facts:
            self._facts[fact.digest] = (before, fact)
            before = fact.digest


def _passing(node: FakeNode) -> Callable[[Fact], bool]:
    wanted = node.relays.filter()
    return lambda fact: wanted.streams is None or fact.stream in wanted.streams


def _serials(facts: Sequence[Fact]) -> str:
    return f"{facts[0].serial} to {facts[-1].serial} ({len(facts)})" if facts else "none"
