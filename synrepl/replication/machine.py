"""Machine: a state, and the table that says what may happen in each state and which states may follow.

What lives long and waits for others is a machine: a follower's stream, the relay of a replica, a replica, the
role of a daemon. Each declares its states as an enum, its events as another one (or as classes, if an event
carries data), and its table as data. The code of the machine decides which of the states that the table
allows comes next, and does the I/O; the table is what holds whatever the code decides. So a state that was
forgotten, an event that comes too late and a misspelt word are errors at once, with the names of both, and
not a daemon that waits for ever. The manual draws its pictures from the tables, and the tests walk them.
"""

import enum
from collections.abc import Hashable, Mapping
from typing import Generic, Self, TypeVar

from synrepl.errors import LocalProtocolError

S = TypeVar("S", bound=enum.Enum)

Transitions = Mapping[S, Mapping[Hashable, frozenset[S]]]
"""By state, the events that are possible in it, and by event the states that may follow."""


class NamedState(enum.StrEnum):
    """A state that operators see: its value is the word for it, and `means` says it in a sentence.

    >>> class Door(NamedState):
    ...     OPEN = "open", "everybody can pass"
    >>> f"{Door.OPEN}: {Door.OPEN.means}"
    'open: everybody can pass'
    """

    means: str

    def __new__(cls, word: str, means: str) -> Self:
        """Make a member of its word and its meaning."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.means = means
        return member


class Machine(Generic[S]):
    """The state of one thing, called `name` in errors, which only moves as its table allows."""

    __slots__ = ("_name", "_transitions", "state")

    def __init__(self, name: str, transitions: Transitions[S], state: S) -> None:
        self.state = state
        self._name = name
        self._transitions = transitions

    def accepts(self, event: Hashable) -> bool:
        """Whether the event is possible now."""
        return event in self._transitions[self.state]

    def move(self, event: Hashable, state: S | None = None) -> bool:
        """Note that an event came, and the state after it (None: the same). Returns whether it has changed.

        Raises `LocalProtocolError` if the table does not allow the event now, or not this state after it.
        """
        before, after = self.state, self.state if state is None else state
        allowed = self._transitions[before].get(event)
        if allowed is None:
            raise LocalProtocolError(
                f"{self._name}: the event {event_name(event)} is impossible in state {before.name}"
            )
        if after not in allowed:
            why = f"the state {after.name} may not follow {before.name} at the event {event_name(event)}"
            raise LocalProtocolError(f"{self._name}: {why}")
        self.state = after
        return after is not before


def states_of(transitions: Transitions[S], event: Hashable) -> list[S]:
    """Return the states in which the event is possible, in the order of the table."""
    return [state for state, events in transitions.items() if event in events]


def event_name(event: Hashable) -> str:
    """Return the name of an event: of an enum's member, or of a class."""
    return event.name if isinstance(event, enum.Enum) else getattr(event, "__name__", str(event))
