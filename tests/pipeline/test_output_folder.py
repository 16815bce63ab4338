"""Who may read what a job writes: its owner alone, or the readers of the folder that was there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from synrepl.pipeline.commands.output_folder import output_folder
from tests.pipeline.clusters import QUICK
from tests.processes.replicas import fill
from tests.service.processes import ROOT, Daemon


@pytest.fixture
def common_umask() -> Iterator[None]:
    """Others may read what a program makes."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with 60 facts of a stream."""
    (tmp_path / "daemon").mkdir()
    fill(tmp_path / "daemon" / "synrepl.db", 60, streams=("push_rules",))
    with Daemon(tmp_path / "daemon") as daemon:
        yield daemon


def modes(folder: Path) -> set[str]:
    """The modes of the folder itself, and of all in it."""
    return {f"{path.stat().st_mode & 0o7777:o}" for path in (folder, *folder.rglob("*"))}


def write_into(folder: Path) -> None:
    """What each job does in some way."""
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c").touch()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, {"700", "600"}),
        (0o700, {"700", "600"}),
        (0o750, {"750", "640"}),
        (0o755, {"755", "644"}),
        # Who may write the folder may not change the files that are in it.
        (0o775, {"775", "755", "644"}),
        (0o711, {"711", "600"}),
    ],
)
@pytest.mark.usefixtures("common_umask")
def test_files_are_read_by_those_who_read_the_folder(
    tmp_path: Path, mode: int | None, expected: set[str]
) -> None:
    """And by nobody else in a new folder. A process that is told nothing makes what it made."""
    folder = tmp_path / "folder"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)

    with output_folder(str(folder)):
        write_into(folder)
    write_into(tmp_path / "after")

    assert expected == modes(folder)
    assert {"755", "644"} == modes(tmp_path / "after")


@pytest.mark.usefixtures("common_umask")
def test_a_uri_of_this_machine_is_a_folder_and_others_are_not(tmp_path: Path) -> None:
    """Object stores have rights of their own."""
    with output_folder(f"file://{tmp_path}/with%20space"):
        write_into(tmp_path / "with space")
    with output_folder("s3://bucket/folder"):
        write_into(tmp_path / "other")

    assert {"700", "600"} == modes(tmp_path / "with space")
    assert {"755", "644"} == modes(tmp_path / "other")


def other_group() -> int:
    """A group that this user may give his files to, and does not by himself."""
    if os.geteuid() == 0:
        return 54_321
    return next((group for group in os.getgroups() if group != os.getegid()), os.getegid())


@pytest.mark.parametrize("mode", [0o750, 0o2750])
@pytest.mark.usefixtures("common_umask")
def test_the_group_of_the_folder_has_its_files(tmp_path: Path, mode: int) -> None:
    """Analysts of a group read what is archived for them."""
    folder, group = tmp_path / "folder", other_group()
    folder.mkdir()
    os.chown(folder, -1, group)
    folder.chmod(mode)

    with output_folder(str(folder)):
        write_into(folder)

    assert {group} == {path.stat().st_gid for path in (folder / "a").rglob("*")} | {
        (folder / "a").stat().st_gid
    }


JOBS: Final = {
    "archive": ("--archive", "archive", "--url", "URL"),
    "shared": ("--archive", "shared", "--url", "URL"),
    "snapshot": ("--archive", "archive", "--snapshot", "snapshot"),
    "tables": ("--archive", "archive", "--out", "tables", "--only", "invalidations"),
    "report": ("--archive", "archive", "--out", "report"),
}
"""What writes to each folder."""

QUICK_SPARK: Final = [word for name, value in QUICK.items() for word in ("--conf", f"{name}={value}")]

NAMES: Final = {"shared": "archive", "snapshot": "compact"}
"""The commands that have not the name of their folder."""


@pytest.mark.parametrize(
    ("engine", "folders"),
    [("local", [*JOBS]), pytest.param("spark", ["archive"], marks=[pytest.mark.slow])],
)
def test_an_archive_is_as_private_as_the_log(
    daemon: Daemon, tmp_path: Path, engine: str, folders: list[str]
) -> None:
    """On both engines: what a JVM starts has the umask of the command, too."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    for folder in folders:
        words = [daemon.url if word == "URL" else word for word in JOBS[folder]]
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "synrepl",
                "pipeline",
                NAMES.get(folder, folder),
                "--engine",
                engine,
                *(QUICK_SPARK if engine == "spark" else ()),
                *words,
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            umask=0o022,
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == ended.returncode, ended.stderr
        expected = {"750", "640"} if folder == "shared" else {"700", "600"}
        assert expected == modes(tmp_path / folder), folder
