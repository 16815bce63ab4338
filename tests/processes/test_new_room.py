"""A room made by the page alone: its folder, its line of setup.py, and everything else follows."""

import json
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pytest

import synrepl
from synrepl.rooms import ENTRY_POINTS
from tests.service.processes import Daemon, Process

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs/howto/contribute.md").read_text("utf-8")
FILE: Final = re.compile(r"^`(greeting/\w+\.py)`.*?\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A file of the page: its path below `synrepl`, and its text."""
LINE: Final = re.compile(r'^`setup\.py`.*`"(.*)",`$', re.MULTILINE)


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    """A folder with a package synrepl that has one more room, before the installed one on the path."""
    (tmp_path / "synrepl").mkdir()
    for entry in Path(synrepl.__file__).parent.iterdir():
        (tmp_path / "synrepl" / entry.name).symlink_to(entry)
    for name, text in FILE.findall(PAGE):
        path = tmp_path / "synrepl" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    installed = distribution("synrepl")
    description = tmp_path / f"synrepl-{installed.version}.dist-info"
    description.mkdir()
    (description / "METADATA").write_text(f"Name: synrepl\nVersion: {installed.version}\n", "utf-8")
    [line] = LINE.findall(PAGE)
    others = [f"{one.name} = {one.value}" for one in installed.entry_points.select(group=ENTRY_POINTS)]
    lines = ["[console_scripts]", "synrepl = synrepl.cli:main", f"[{ENTRY_POINTS}]", *others, line]
    (description / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    return tmp_path


def said(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code of a command of the program, and what it prints."""
    with Process("-m", "synrepl", *words, cwd=folder) as command:
        return command.wait(), "\n".join(command.lines)


@pytest.mark.story
def test_a_room_of_the_page_has_all_that_it_declares(checkout: Path) -> None:
    """Its setting, its route, its command, and its line of the status."""
    with Daemon(checkout, options=("--server-name", "hs.test", "--greeting", "Hello")) as daemon:
        assert (0, "Hello, Ada") == said(checkout, "greet", "Ada", "--url", daemon.url)
        code, status = said(checkout, "status", "--url", daemon.url)
        assert (0, ["greeting: 1 greeted"]) == (
            code,
            [one for one in status.splitlines() if "greeting" in one],
        )
        code, status = said(checkout, "status", "--json", "--url", daemon.url)
        assert {"greeted": 1} == json.loads(status)["greeting"]

    assert "Be greeted by a daemon." in said(checkout, "--help")[1]


@pytest.mark.story
def test_a_daemon_that_does_not_want_the_room_lacks_it(checkout: Path) -> None:
    with Daemon(checkout, options=("--server-name", "hs.test")) as daemon:
        code, refusal = said(checkout, "greet", "--url", daemon.url)

    assert 0 != code
    assert "this daemon greets nobody" in refusal
