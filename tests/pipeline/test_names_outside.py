"""Files that an archive or a snapshot names are in it: names come from logs that others may have written."""

import json
import shutil
from pathlib import Path

import pytest

from synrepl.errors import ConfigError
from synrepl.pipeline.archive.row_files import read_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.snapshot.snapshot import SNAPSHOT, read_snapshot
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from tests.pipeline.archives import archive, chained, correct_checksums

OUTSIDE = [
    "../secret/x.parquet",
    "stream=a/../../x.parquet",
    "..",
    "/secret/x.parquet",
    "//host/x.parquet",
    "file:///secret/x.parquet",
    "file:/secret/x.parquet",
    "s3://bucket/x.parquet",
    "%2e%2e/x.parquet",
    "%2E%2e%2Fx.parquet",
    "%252e%252e/x.parquet",
    "..%2Fx.parquet",
    "%2Fsecret/x.parquet",
    "stream=a/{..,b}/x.parquet",
    "stream=a/*.parquet",
    "x.parquet\n",
    "x.parquet\x00",
    "..\\x.parquet",
]
INSIDE = [
    "stream=%40a%2Fb/date=2026-11-24/000000000001-ab12.parquet",
    "stream=..%2Fx/date=2026-11-24/000000000001-ab12.parquet",
    "part-00000-1b2c.c000.snappy.parquet",
    "upto=000000000009/part-000000000001-ab.parquet",
    "a..b/x.parquet",
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("location", ["/archive", "s3://bucket/archive"])
def test_a_name_that_leaves_the_store_is_refused(location: str, name: str) -> None:
    """Of a directory and of an object store alike."""
    store = Store(location)

    for use in (store.path, store.uri):
        with pytest.raises(BadArchive, match="names a file outside of it, which is not read") as caught:
            use(name)

    assert str(caught.value).startswith(location)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", INSIDE)
def test_a_name_within_the_store_is_used_as_it_is(name: str) -> None:
    """Encoded names of streams too."""
    assert f"/archive/{name}" == Store("/archive").path(name)


def move_outside(folder: Path, written: str) -> None:
    """Have the log of the archive name its first file by this path, at which the file is."""
    log = folder / "archive" / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (add,) = [line["add"] for line in lines if "add" in line]
    (folder / "secret").mkdir()
    shutil.move(folder / "archive" / add["path"], folder / "secret" / "x.parquet")
    add["path"] = written
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    correct_checksums(folder / "archive")


@pytest.mark.parametrize("written", ["../secret/x.parquet", "%2e%2e/secret/x.parquet", "absolute", "file"])
def test_an_archive_whose_log_names_a_file_outside_is_refused(written: str, tmp_path: Path) -> None:
    """`compact` took the file into the snapshot, and `audit` called the archive clean."""
    outside = tmp_path / "secret" / "x.parquet"
    written = {"absolute": str(outside), "file": f"file://{outside}"}.get(written, written)
    archive(str(tmp_path / "archive"), chained([("push_rules", "w", [["@a:b"]])]))
    store = Store(str(tmp_path / "archive"))
    assert 1 == len(ArchiveTable(store).files)
    move_outside(tmp_path, written)

    with pytest.raises(BadArchive, match=r"x\.parquet") as caught:
        _ = ArchiveTable(store).files

    assert str(store) in str(caught.value)
    with pytest.raises(BadArchive):
        list(read_files(store, ["../secret/x.parquet"], ROWS))


def linked(folder: Path) -> Path:
    """An archive in this folder, with a link in place of the folder of a stream; gives where it leads."""
    archive(str(folder / "archive"), chained([("push_rules", "w", [["@a:b"]])]))
    outside = folder / "secret"
    shutil.move(folder / "archive" / "stream=push_rules", outside)
    (folder / "archive" / "stream=push_rules").symlink_to(outside)
    return outside


def test_a_link_that_leads_outside_is_not_followed(tmp_path: Path) -> None:
    """Neither to read nor to write, nor to remove; one that stays inside is."""
    outside = linked(tmp_path)
    store = Store(str(tmp_path / "archive"))
    (path,) = ArchiveTable(store).files["path"].to_pylist()
    (tmp_path / "archive" / "same").symlink_to("_delta_log")

    for use in (store.open, store.size, store.uri, store.remove, lambda name: store.write(name, b"")):
        with pytest.raises(BadArchive, match="a symbolic link leads outside of it, which is not followed"):
            use(path)
    with pytest.raises(BadArchive):
        list(read_files(store, [path], ROWS))
    assert store.names("same")
    assert 1 == len(list(outside.rglob("*.parquet")))


def test_files_behind_a_link_are_not_vacuumed(tmp_path: Path) -> None:
    """All files in the folder to which it led were removed."""
    outside = linked(tmp_path)
    (outside / "mail.txt").write_text("secret")
    table = ArchiveTable(Store(str(tmp_path / "archive")))

    for dry_run in (True, False):
        with pytest.raises(BadArchive, match="stream=push_rules is a symbolic link"):
            table.vacuum(retention_hours=0, dry_run=dry_run)

    assert "secret" == (outside / "mail.txt").read_text()


def test_a_snapshot_that_names_a_file_outside_is_refused(tmp_path: Path) -> None:
    part = {"path": "../secret/part.parquet", "rows": 1, "facts": 1, "sha256": "", "bytes": 1}
    given = {
        "version": 1,
        "epoch": 1,
        "serial": 1,
        "digest": "",
        "history": "",
        "server_name": "",
        "clock": {},
        "epoch_starts": [],
        "facts": 1,
        "rows": 1,
        "keys": 1,
        "made_at_ms": 1,
        "files": [part | {"first_serial": 1, "last_serial": 1}],
    }
    (tmp_path / SNAPSHOT).write_text(json.dumps(given))

    with pytest.raises(BadArchive, match="names a file outside of it"):
        read_snapshot(Store(str(tmp_path)))


def test_an_invalid_location_is_not_called_unreachable() -> None:
    with pytest.raises(ConfigError, match="nope://x is not a path or URI of a file system"):
        _ = Store("nope://x").filesystem
