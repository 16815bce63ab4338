"""What the tests of rooms declare for scripts."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from synrepl.rooms import rooms


def of_rooms(module: str, name: str) -> dict[str, Any]:
    """Return the tables called `name` in this module below the tests of the installed rooms, as one table."""
    places = [f"tests.{room.name}.{module}" for room in rooms()]
    found = [place for place in places if find_spec(place.rpartition(".")[0]) and find_spec(place)]
    return {key: value for place in found for key, value in getattr(import_module(place), name, {}).items()}
