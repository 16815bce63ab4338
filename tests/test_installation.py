"""What an installation wrote down, read as `importlib.metadata` reads it."""

import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import synrepl.installation
from synrepl.installation import entry_points, version

METADATA = "Metadata-Version: 2.4\nName: synrepl\nVersion: 1.2.3\n\nVersion: of the description\n"
POINTS = "[console_scripts]\nsynrepl = a:b\n\n[rooms]\nfiles = c.d:E\nids=f:G\n\n[others]\nh = i:j\n"
SHOWN = "import synrepl.installation as i; print(i.version(), dict(i.entry_points('rooms')))"


@pytest.mark.parametrize("group", ["synrepl.rooms", "console_scripts", "there are none"])
def test_it_is_what_importlib_finds(group: str) -> None:
    """Of the installation that runs these tests."""
    installed = distribution("synrepl")

    assert {one.name: one.value for one in installed.entry_points.select(group=group)} == entry_points(group)
    assert installed.version == version()


@pytest.mark.parametrize(
    ("folder", "metadata", "is_packed"),
    [
        ("synrepl-1.2.3.dist-info", "METADATA", False),
        ("synrepl.egg-info", "PKG-INFO", False),
        ("synrepl-1.2.3.dist-info", "METADATA", True),
    ],
)
def test_every_kind_of_installation_is_read(
    tmp_path: Path, folder: str, metadata: str, *, is_packed: bool
) -> None:
    """A wheel's, one of a checkout, and one in a ZIP file."""
    here, code = tmp_path / "here", Path(synrepl.installation.__file__).read_text("utf-8")
    files = {
        "synrepl/__init__.py": "",
        "synrepl/installation.py": code,
        f"{folder}/{metadata}": METADATA,
        f"{folder}/entry_points.txt": POINTS,
        "synrepl_other-4.dist-info/METADATA": METADATA.replace("1.2.3", "4"),
    }
    if is_packed:
        with zipfile.ZipFile(here, "w") as packed:
            for name, text in files.items():
                packed.writestr(name, text)
    else:
        for name, text in files.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_text(text)

    assert "1.2.3 {'files': 'c.d:E', 'ids': 'f:G'}\n" == shown(here)


def test_without_an_installation_there_is_no_version_and_no_room(tmp_path: Path) -> None:
    """As for somebody who runs a checkout by its path."""
    (tmp_path / "synrepl").mkdir()
    (tmp_path / "synrepl" / "__init__.py").touch()
    code = Path(synrepl.installation.__file__).read_text("utf-8")
    (tmp_path / "synrepl" / "installation.py").write_text(code)

    assert "unknown {}\n" == shown(tmp_path)


def shown(where: Path) -> str:
    """What is found by a Python that knows this place and its own library only."""
    code = f"import sys; sys.path.insert(0, {str(where)!r}); {SHOWN}"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    ).stdout
