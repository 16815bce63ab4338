"""What scripts/rooms takes out of the files of a project, and what it refuses."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts import rooms

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = rooms.ROOM.findall((ROOT / "setup.py").read_text("utf-8"))


def contracts(*absent: str) -> dict[str, dict[str, Any]]:
    """The contracts of import-linter that are left without these rooms, by name."""
    text = rooms.without_contracts((ROOT / "pyproject.toml").read_text("utf-8"), absent)
    return {one["name"]: one for one in tomllib.loads(text)["tool"]["importlinter"]["contracts"]}


@pytest.mark.parametrize("room", INSTALLED)
def test_a_room_has_one_line_in_setup(room: str) -> None:
    text = (ROOT / "setup.py").read_text("utf-8")

    left = rooms.without_entry_points(text, [room])

    assert [one for one in INSTALLED if one != room] == rooms.ROOM.findall(left)
    assert text.count("\n") - 1 == left.count("\n")


@pytest.mark.parametrize("room", INSTALLED)
def test_no_contract_names_a_missing_room(room: str) -> None:
    """import-linter refuses a module that does not exist; only a layer may be missing."""
    for one in contracts(room).values():
        for key in ("source_modules", "forbidden_modules", "ignore_imports"):
            assert not [name for name in one.get(key, ()) if f"synrepl.{room}." in f"{name}."]
        assert one.get("source_modules") != []


def test_a_contract_of_missing_rooms_alone_goes() -> None:
    whole, left = contracts("kitchen"), contracts(*INSTALLED)

    assert {"The pipeline runs where the daemon is not"} == whole.keys() - left.keys()
    assert ["synrepl.http_client"] == left["What travels to executors by value needs nothing else of ours"][
        "source_modules"
    ]


@pytest.mark.parametrize("word", ["kitchen", "--test"])
def test_words_that_are_no_rooms_are_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == rooms.main([word])
    assert "rooms are channel, files" in capsys.readouterr().err
