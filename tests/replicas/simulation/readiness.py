"""Whether daemons that call themselves ready are on the history of their upstream, and of a primary.

That is checked at the moment at which a replica says so for the first time since its start, or again after it
has said the opposite. Afterwards the upstream may lose facts at any time, and the replica cannot know yet.
"""

from collections.abc import Callable
from dataclasses import dataclass

from synrepl.base.interfaces import IClock
from synrepl.replicas.replica.replica import Replica
from tests.replicas.nodes import FakeNode
from tests.replicas.simulation.histories import Histories

__all__ = ["Readiness"]


@dataclass
class _Line:
    """What a daemon had for a while, in one role: everything up to `digest`. None: until now."""

    digest: str
    is_primary: bool
    until: float | None = None


class Readiness:
    """Records what each node had and when, and looks at those that become ready.

    `report` is called with each that is ready too early. `checked` counts those that were looked at.
    """

    def __init__(self, clock: IClock, histories: Histories, report: Callable[[str], None]) -> None:
        self._clock = clock
        self._histories = histories
        self._report = report
        self._lines: dict[str, list[_Line]] = {}
        self._ready: dict[str, Replica | None] = {}
        """By nodes, the replica that was ready when it was looked at last."""
        self._unready_since: dict[str, float] = {}
        self.checked = 0

    def began(self, node: FakeNode) -> None:
        """Note that a node has started, has another role, or another copy."""
        self.ended(node)
        line = _Line(node.log.position.digest, node.roles.is_primary)
        self._lines.setdefault(node.name, []).append(line)

    def ended(self, node: FakeNode) -> None:
        """Note that a node is killed."""
        if (lines := self._lines.get(node.name)) and lines[-1].until is None:
            lines[-1].until = self._clock.seconds()

    def killed(self, node: FakeNode) -> None:
        """Note that a node is killed: whoever starts in its place has not said anything."""
        self.ended(node)
        self._ready.pop(node.name, None)
        self._unready_since.pop(node.name, None)

    def committed(self, node: FakeNode) -> None:
        """Note that a node has more facts."""
        if lines := self._lines.get(node.name):
            lines[-1].digest = node.log.position.digest

    def look(self, node: FakeNode) -> None:
        """Look whether a node is ready, and may be."""
        replica, now = node.replica, self._clock.seconds()
        if replica is None or node.roles.unreadiness() is not None:
            self._ready.pop(node.name, None)
            self._unready_since.setdefault(node.name, now)
        elif self._ready.get(node.name) is not replica:
            self._ready[node.name] = replica
            self._check(node, replica, self._unready_since.pop(node.name, now))

    def _check(self, node: FakeNode, replica: Replica, since: float) -> None:
        self.checked += 1
        upstream = replica.upstream.where.native
        if not any(self._holds(line, node, since) for line in self._lines.get(upstream, [])):
            self._report(f"{node.name} is ready with facts that its upstream {upstream} lacks")
        lines = [
            line
            for name, of_node in self._lines.items()
            for line in of_node
            if name != node.name and line.is_primary
        ]
        if not any(self._holds(line, node, since) for line in lines):
            self._report(f"{node.name} is ready with facts that no primary has had since {since:.3f}")

    def _holds(self, line: _Line, node: FakeNode, since: float) -> bool:
        is_recent = line.until is None or line.until >= since
        return is_recent and self._histories.continues(line.digest, node.log.position.digest)
