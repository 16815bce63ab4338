"""What belongs to a room that is not installed, so that a refusal says so.

``missing_rooms.json`` has all rooms, with their settings, commands and URLs (`scripts/docs.py` writes it, and
the tests compare it with the rooms).
"""

import json
from functools import cache
from typing import Literal

from synrepl.rooms import rooms

Kind = Literal["settings", "commands", "urls"]


def missing_rooms() -> set[str]:
    """Return the rooms that are not installed."""
    known = {owner for owners in _owners().values() for owner in owners.values()}
    return known - {room.name for room in rooms()}


@cache
def _owners() -> dict[str, dict[str, str]]:
    from importlib import resources  # late: only a refusal needs it

    text = resources.files("synrepl").joinpath("missing_rooms.json").read_text("utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def why_missing(kind: Kind, name: str) -> str:
    """Return ``it belongs to ROOM, which is not installed``; empty if this is of no missing room.

    `name` is a setting with ``_``, a command, or a path of a URL with its variables in braces.
    """
    owner = _owners()[kind].get(name, "")
    if owner not in missing_rooms():
        return ""
    return f"it belongs to {owner}, which is not installed"


def missing_url(parts: list[str]) -> str:
    """Return `why_missing` of the URL with these parts of its path; variables match any part."""
    for path in _owners()["urls"]:
        declared = path[1:].split("/")
        is_open = declared[-1].endswith(":path}")
        shown = parts[: len(declared)] if is_open else parts
        fits = all(one.startswith("{") or one == part for one, part in zip(declared, shown, strict=False))
        if fits and len(shown) == len(declared) and (why := why_missing("urls", path)):
            return why
    return ""


def describe_rooms() -> dict[str, dict[str, str]]:
    """Return what the installed rooms have, as ``missing_rooms.json`` has it."""
    found: dict[str, dict[str, str]] = {"rooms": {}, "settings": {}, "commands": {}, "urls": {}}
    for room in rooms():
        found["rooms"][room.name] = room.name
        for names in room.headings.values():
            found["settings"] |= dict.fromkeys(names.split(), room.name)
        found["commands"] |= {one.name: room.name for one in room.commands}
        found["urls"] |= {route.path: room.name for route in room.routes()}
    return found
