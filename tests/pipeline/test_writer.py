"""Files of archives and snapshots, and their statistics, without Spark."""

import os
import stat
from pathlib import Path

import pytest

from synrepl.pipeline.store import Store


def test_a_file_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves a snapshot of nothing, or one that names empty files; the log may be trimmed by
    then. Names are synced as well, those of the folders above included."""
    happened: list[str] = []
    synced = os.fsync
    named = tmp_path / "folder" / "file"

    def sync(descriptor: int) -> None:
        what = os.fstat(descriptor)
        size = what.st_size if stat.S_ISREG(what.st_mode) else "folder"
        happened.append(f"{size} {'named' if named.exists() else 'unnamed'}")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", sync)

    Store(str(tmp_path)).write("folder/file", b"data")
    Store(str(tmp_path)).write("folder/file", b"other")

    folders = ["folder named", "folder named"]
    assert ["folder unnamed", "4 unnamed", *folders, "5 named", *folders] == happened
    assert ["file"] == [path.name for path in named.parent.iterdir()]
