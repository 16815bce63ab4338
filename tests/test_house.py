"""The house itself: what is installed, what importing does, what may be in a file."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.lib.circles import imports_of
from synrepl.daemon.parts import Part
from synrepl.missing_rooms import missing_rooms
from synrepl.rooms import Room, rooms

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {room.name for room in rooms()}

PURE = ("synrepl.errors", "synrepl.wire", "synrepl.streams", "synrepl.caches")


def python(code: str, *, cwd: Path | None = None) -> str:
    """What a fresh interpreter prints when it runs this."""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def pure_modules() -> list[str]:
    """Every module of the pure core."""
    names = []
    for package in PURE:
        path = ROOT.joinpath(*package.split("."))
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        for file in files:
            parts = file.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_twist_lists_the_plugin(tmp_path: Path) -> None:
    """`twist synrepl` exists once synrepl is installed, wherever one stands."""
    result = subprocess.run(
        [sys.executable, "-m", "twisted", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert re.search(r"^\s+synrepl\s", result.stdout, re.MULTILINE), result.stdout + result.stderr


def test_the_plugin_shows_its_options(tmp_path: Path) -> None:
    """From any folder, and without an error on the way."""
    result = subprocess.run(
        [sys.executable, "-m", "twisted", "synrepl", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "--listen" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_importing_synrepl_installs_no_reactor() -> None:
    """A worker chooses its own reactor, also after it has imported us."""
    code = """
import sys
import synrepl
for name in synrepl.__all__:
    try:
        getattr(synrepl, name)
    except ImportError as error:
        assert "which is not installed" in str(error)
print("twisted.internet.reactor" in sys.modules)
"""
    assert python(code) == "False\n"


def test_the_pure_core_runs_without_twisted() -> None:
    """Wire and streams serve an asyncio client or a Spark executor that has never heard of Twisted."""
    code = f"""
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("twisted", "zope", "prometheus_client", "pyspark"):
            raise ModuleNotFoundError("not installed here: " + name)
sys.meta_path.insert(0, Absent())
for name in {pure_modules()!r}:
    importlib.import_module(name)
print("fine")
"""
    assert python(code) == "fine\n"


def test_no_file_names_the_machine_it_was_written_on() -> None:
    """A path that exists on one machine only is noise to everybody else, or worse, works only there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    places = [str(ROOT)] if len(ROOT.parts) > 2 else []
    if len(Path.home().parts) > 1:
        places.append(str(Path.home()))
    here = "|".join([re.escape(position) + r"\b" for position in places])
    anywhere = r"(?<![\w.$}~-])/(?:work|workspaces?|builds|__w|root|home/[\w.-]+|Users/[\w.-]+|tmp/[\w.-]+)/"
    machine = re.compile(f"(?<![\\w.-])(?:{here})|{anywhere}" if here else anywhere)

    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{name}:{at}: {line}" for at, line in enumerate(text.splitlines(), 1) if machine.search(line)
        ]

    assert found == []


def test_nothing_on_the_wire_authenticates_by_itself() -> None:
    """Keys travel as with every server: of `hmac`, only the comparison in constant time is used there."""
    found = []
    for folder in ("wire", "transports", "replication", "http_api", "daemon"):
        for path in sorted((ROOT / "synrepl" / folder).rglob("*.py")):
            used = re.findall(r"\bhmac\.(\w+)|from hmac import (.*)", path.read_text("utf-8"))
            named = {name for one in used for name in one if name} - {"compare_digest"}
            found += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(named)]

    assert found == []


def folder(module: str) -> str:
    """The folder or single module below `synrepl` in which a module is."""
    return module.partition(".")[2].partition(".")[0]


def layers_contract() -> dict[str, Any]:
    """The contract of import-linter that has the layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract: dict[str, Any] = settings["tool"]["importlinter"]["contracts"][0]
    return contract


def test_every_module_has_a_layer() -> None:
    """import-linter checks only those that `layers` names; a new room needs no line there."""
    contract = layers_contract()
    layered = {name for layer in contract["layers"] for name in re.findall(r"\w+", layer)}
    there = {path.stem for path in (ROOT / "synrepl").iterdir() if path.suffix == ".py" or path.is_dir()}

    assert there - layered - {"__init__", "__pycache__"} <= ROOMS
    assert layered - ROOMS - missing_rooms() <= there


def test_only_listed_modules_import_a_room_of_others() -> None:
    """Neither the core nor another room: whoever deletes a room looks at nothing else. Types aside."""
    contract = layers_contract()
    listed = {tuple(line.split(" -> ")) for line in contract.get("ignore_imports", ())}
    found = {
        (one.by, one.of)
        for one in imports_of(ROOT / "synrepl")
        if not one.for_types and folder(one.of) in ROOMS and folder(one.by) != folder(one.of)
    }

    assert found <= listed


def declarations(declaring: type) -> list[str]:
    """What a room can declare of this."""
    names = {*vars(declaring), *declaring.__annotations__}
    return sorted(f"{declaring.__name__}.{name}" for name in names if not name.startswith("_"))


@pytest.mark.parametrize(("declaring", "module"), [(Room, "room.py"), (Part, "part.py")])
def test_a_declaration_is_used_by_two_rooms_or_has_a_reason(declaring: type, module: str) -> None:
    """howto/contribute.md has the reasons. What one room alone needs is the room's, as a rule."""
    page = (ROOT / "docs/howto/contribute.md").read_text("utf-8")
    reasoned = set(re.findall(rf"`({declaring.__name__}\.\w+)(?:\(\))?`", page))
    texts = [path.read_text("utf-8") for path in (ROOT / "synrepl").glob(f"*/{module}")]

    def users(declared: str) -> int:
        name = declared.partition(".")[2]
        return sum(
            bool(re.search(rf"^    (async )?(def )?{name}\b|self\.{name} = ", text, re.MULTILINE))
            for text in texts
        )

    assert reasoned == {one for one in declarations(declaring) if users(one) < 2}
