"""mode_for: chooses the mode and the order in which a stream is followed."""

from collections.abc import Callable

from synrepl.replication.follower.mode import Mode, StreamHistory
from synrepl.replication.follower.order import ORDERED, OVERTAKING, RESTARTING, UNORDERED
from synrepl.replication.follower.pull import Pull, Shared
from synrepl.replication.follower.push import Push
from synrepl.replication.follower.strategy import FollowStrategy

__all__ = ["mode_for"]


def mode_for(
    name: str, strategy: FollowStrategy, history: StreamHistory, *, seconds: Callable[[], float]
) -> Mode:
    """How the stream `name` is followed on a connection with this strategy. `seconds` returns the time."""
    policy = history.policy
    order = UNORDERED
    if not policy.monotonic:
        order = RESTARTING
    elif strategy.keeps_order(name, policy.ordered):
        order = OVERTAKING if strategy.pushed else ORDERED
    if strategy.pushed:
        return Push(history, order)
    return Shared(history, order, seconds) if strategy.shared else Pull(history, order)
