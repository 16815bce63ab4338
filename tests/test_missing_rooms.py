"""What a room has is named by a refusal once the room is not installed."""

from __future__ import annotations

import json
from importlib import resources
from unittest.mock import patch

import pytest

from synrepl import missing_rooms
from synrepl.config import Settings
from synrepl.errors import ConfigError
from synrepl.missing_rooms import describe_rooms, missing_url, why_missing
from synrepl.rooms import Room, rooms

OWNERS = {
    "settings": {"tea_pot": "kitchen"},
    "commands": {"brew": "kitchen"},
    "urls": {"/v1/tea/{pot}": "kitchen", "/v1/cups/{name:path}": "kitchen"},
}
WHY = "it belongs to kitchen, which is not installed"


@pytest.fixture
def kitchen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A room that is known and not installed."""
    monkeypatch.setattr(missing_rooms, "_owners", lambda: OWNERS)


def test_the_stored_list_has_what_the_rooms_have() -> None:
    """scripts/docs writes it."""
    stored = json.loads(resources.files("synrepl").joinpath("missing_rooms.json").read_text("utf-8"))
    installed = {room.name for room in rooms()}

    assert describe_rooms() == {
        kind: {name: owner for name, owner in owners.items() if owner in installed}
        for kind, owners in stored.items()
    }


@pytest.mark.usefixtures("kitchen")
def test_names_of_a_missing_room() -> None:
    """A setting, a command, a URL with variables."""
    assert WHY == why_missing("settings", "tea_pot")
    assert WHY == why_missing("commands", "brew")
    assert WHY == missing_url(["v1", "tea", "green"])
    assert WHY == missing_url(["v1", "cups", "a", "b"])
    assert "" == missing_url(["v1", "tea"]) == why_missing("commands", "serve")


@pytest.mark.usefixtures("kitchen")
def test_a_setting_of_a_missing_room_is_refused_in_one_line() -> None:
    """As a flag, and in a file."""
    with pytest.raises(ConfigError, match=f"^there is no setting tea_pot; {WHY}$"):
        Settings.build({"tea_pot": "green"})


@pytest.mark.usefixtures("kitchen")
def test_nothing_is_missing_once_the_room_is_there() -> None:
    """The same names are then unknown for another reason."""
    kitchen = Room()
    kitchen.name = "kitchen"

    with patch.object(missing_rooms, "rooms", return_value=(kitchen,)):
        assert "" == why_missing("settings", "tea_pot")
