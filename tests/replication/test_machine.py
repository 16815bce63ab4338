"""A machine moves as its table allows, and in no other way."""

import enum
import json

import pytest

from synrepl.errors import LocalProtocolError
from synrepl.replication.machine import Machine, NamedState, Transitions, states_of


class Light(NamedState):
    """The states of a lamp."""

    OFF = "off", "it is dark"
    ON = "on", "it shines"
    BROKEN = "broken", "it was thrown away"


class Push(enum.Enum):
    """Its events."""

    SWITCH = "somebody presses the switch"
    DROP = "somebody drops it"


TABLE: Transitions[Light] = {
    Light.OFF: {Push.SWITCH: frozenset({Light.ON}), Push.DROP: frozenset({Light.OFF, Light.BROKEN})},
    Light.ON: {Push.SWITCH: frozenset({Light.OFF}), int: frozenset({Light.ON})},
    Light.BROKEN: {},
}


def test_a_machine_moves_as_its_table_allows() -> None:
    """And says whether that was another state."""
    lamp = Machine("lamp", TABLE, Light.OFF)

    assert [False, True, False, True, True] == [
        lamp.move(Push.DROP),
        lamp.move(Push.SWITCH, Light.ON),
        lamp.move(int),
        lamp.move(Push.SWITCH, Light.OFF),
        lamp.move(Push.DROP, Light.BROKEN),
    ]
    assert lamp.state is Light.BROKEN


@pytest.mark.parametrize(
    ("state", "event", "after", "why"),
    [
        (Light.ON, Push.DROP, None, "lamp: the event DROP is impossible in state ON"),
        (Light.BROKEN, int, None, "lamp: the event int is impossible in state BROKEN"),
        (
            Light.OFF,
            Push.SWITCH,
            Light.BROKEN,
            "lamp: the state BROKEN may not follow OFF at the event SWITCH",
        ),
        (Light.OFF, Push.SWITCH, None, "lamp: the state OFF may not follow OFF at the event SWITCH"),
    ],
)
def test_all_else_is_an_error_and_moves_nothing(
    state: Light, event: object, after: Light | None, why: str
) -> None:
    """It names both, for the log."""
    lamp = Machine("lamp", TABLE, state)
    with pytest.raises(LocalProtocolError, match=why):
        lamp.move(event, after)

    assert lamp.state is state


def test_the_table_can_be_asked() -> None:
    """For what is possible now, and where an event is."""
    assert Machine("lamp", TABLE, Light.ON).accepts(int)
    assert not Machine("lamp", TABLE, Light.OFF).accepts(int)
    assert [Light.OFF, Light.ON] == states_of(TABLE, Push.SWITCH)


def test_a_state_is_its_word() -> None:
    """In status, logs and JSON."""
    assert ("on", '"on"', "it shines") == (f"{Light.ON}", json.dumps(Light.ON), Light.ON.means)
