"""Events of rooms, and changes of their current state."""

from collections.abc import Hashable
from typing import Annotated

from synrepl.streams.stream import Bool, Since, Stream, row

__all__ = ["EVENTS", "Event", "State", "StateAll"]


@row(tag="ev", flat_until="0.99.4")
class Event:
    """An event was persisted."""

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    redacts: str | None
    relates_to: Annotated[str | None, Since("0.99.5", default=None)]
    membership: Annotated[str | None, Since("1.23", default=None)]
    rejected: Annotated[Bool, Since("1.23", default=False)]
    outlier: Annotated[Bool, Since("1.64", default=False)]


@row(tag="state", since="0.99.4")
class State:
    """An entry of a room's current state changed, or was removed if `event_id` is null."""

    room_id: str
    type: str
    state_key: str
    event_id: str | None


# The exact release is unknown: after 1.66, and not after 1.163 (docs/reference/peers.md#row-shapes).
@row(tag="state-all", since="1.67")
class StateAll:
    """Much of a room's current state changed: read all of it again."""

    room_id: str


def _key(row: Event | State | StateAll) -> tuple[Hashable, ...]:
    match row:
        case Event():
            return ("ev", row.event_id)
        case State():
            return ("state", row.room_id, row.type, row.state_key)
        case StateAll():
            return ("state-all", row.room_id)


def _is_gone(row: Event | State | StateAll) -> bool:
    return isinstance(row, State) and row.event_id is None


EVENTS: Stream[Event | State | StateAll] = Stream(
    "events", Event | State | StateAll, key=_key, tombstone=_is_gone
)
