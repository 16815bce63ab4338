"""The steps that machines take, to be compared with those that their tables allow."""

import enum
import itertools
from collections.abc import Hashable
from typing import Any

import pytest

from synrepl.errors import LocalProtocolError
from synrepl.replication.machine import Machine, Transitions, event_name

Steps = set[tuple[str, str, str]]
"""State, event and next state, by name."""


def allowed_steps(transitions: Transitions[Any]) -> Steps:
    """Every step that the table allows."""
    return {
        (state.name, event_name(event), other.name)
        for state, events in transitions.items()
        for event, others in events.items()
        for other in others
    }


def taken_steps(monkeypatch: pytest.MonkeyPatch, states: type[enum.Enum]) -> Steps:
    """A set that gets each step of a machine with these states from now on."""
    taken: Steps = set()
    move = Machine.move

    def traced(machine: Machine[Any], event: Hashable, state: Any = None) -> bool:
        before = machine.state
        has_changed = move(machine, event, state)
        if isinstance(before, states):
            taken.add((before.name, event_name(event), machine.state.name))
        return has_changed

    monkeypatch.setattr(Machine, "move", traced)
    return taken


def check_every_event(
    transitions: Transitions[Any], states: type[enum.Enum], events: type[enum.Enum]
) -> None:
    """Each event leads where the table says, or is an error that names both and changes nothing."""
    assert set(transitions) == set(states)
    assert {event for possible in transitions.values() for event in possible} == set(events)
    for before, event, after in itertools.product(states, events, states):
        machine = Machine("it", transitions, before)
        if after in transitions[before].get(event, frozenset()):
            machine.move(event, after)
            assert machine.state is after
        else:
            names = f"{event.name}.*{before.name}|{before.name}.*{event.name}"
            with pytest.raises(LocalProtocolError, match=names):
                machine.move(event, after)
            assert machine.state is before
