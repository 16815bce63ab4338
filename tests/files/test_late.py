"""A daemon without files: what it has loaded, and when it opens some."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from synrepl.files.late import NOTHING
from tests.files.builders import checksum
from tests.files.setup import FilesCase
from tests.idle import unwanted
from tests.processes.channel import eventually
from tests.service.processes import Daemon

DECLARATIONS = {
    "synrepl.files",
    "synrepl.files.late",
    "synrepl.files.metrics",
    "synrepl.files.references",
    "synrepl.files.room",
    "synrepl.files.routes",
    "synrepl.files.settings",
}
"""The modules of the room that every daemon has."""

DATA = b"some bytes"
SHA = checksum(DATA)


def asked(daemon: Daemon, method: str, path: str, body: bytes | None = None) -> bytes:
    """The body of the answer to a request."""
    request = urllib.request.Request(f"{daemon.url}{path}", data=body, method=method)
    request.add_header("content-type", "application/json" if method == "POST" else "application/octet-stream")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return bytes(answer.read())


def stored(daemon: Daemon) -> dict[str, Any]:
    """The part of the status about files."""
    found: dict[str, Any] = json.loads(asked(daemon, "GET", "/v1/status"))["files"]
    return found


def folder(daemon_folder: Path) -> Path:
    """Where a daemon stores files, unless it is told otherwise."""
    (log,) = daemon_folder.glob("*.db")
    return log.with_name(f"{log.name}.files")


class NothingTests(FilesCase):
    """Files that were opened, and have none."""

    def test_the_status_of_no_files_is_that_of_files_that_were_opened(self) -> None:
        """Nobody can tell whether they were."""
        self.assertEqual(self.started(replica=False).status(), NOTHING)


def test_it_has_imported_the_declarations_of_the_room_alone() -> None:
    """What stores, names and fetches files comes with the first one."""
    assert unwanted(["synrepl.files"], but=DECLARATIONS) == {}


def test_the_first_upload_opens_them_and_a_restart_finds_them(tmp_path: Path) -> None:
    """Until then there is no folder."""
    with Daemon(tmp_path) as daemon:
        assert NOTHING == stored(daemon)
        assert not folder(tmp_path).exists()
        asked(daemon, "PUT", f"/v1/files/sha256/{SHA}", DATA)

        assert DATA == asked(daemon, "GET", f"/v1/files/sha256/{SHA}")

    with Daemon(tmp_path) as daemon:
        eventually(lambda: stored(daemon)["stored"] == 1, "the stored file is counted")


def test_the_first_name_opens_them(tmp_path: Path) -> None:
    """The file that it names is missing, and somebody should know."""
    with Daemon(tmp_path) as daemon:
        fact = [["create", "a.txt", SHA, len(DATA)]]
        asked(daemon, "POST", "/v1/streams/files/facts", json.dumps({"facts": [fact]}).encode())

        eventually(lambda: stored(daemon)["missing"] == 1, "the missing file is counted")


def test_a_question_for_a_file_that_nobody_named_is_answered(tmp_path: Path) -> None:
    """As it is where there are other files."""
    with Daemon(tmp_path) as daemon, pytest.raises(urllib.error.HTTPError) as refused:
        asked(daemon, "GET", f"/v1/files/sha256/{SHA}")

    assert 404 == refused.value.code
