"""Places in a history, as they are said on the wire."""

from synrepl.ports.history import Place
from synrepl.wire.native import Standing

__all__ = ["said_place", "standing"]


def standing(place: Place) -> Standing:
    """How a place is said."""
    return Standing(place.epoch, place.serial, place.digest)


def said_place(said: Standing) -> Place:
    """The place that was said."""
    return Place(said.epoch, said.serial, said.digest)
