"""What release 26.11.1 left on disk is opened, and goes on where that release stopped."""

import gzip
import json
import shutil
import signal
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from synrepl.wire.codec import codec_of
from synrepl.wire.commands import Rdata
from synrepl.wire.dialect import Dialect
from synrepl.wire.grammar import CLIENT, SERVER
from tests.processes.channel import Fact, kept, status
from tests.processes.loading import made_rows
from tests.processes.test_storage_trouble import cannot_start
from tests.service.processes import TWISTD, Daemon
from tests.upgrades.freeze import FIRST, post
from tests.upgrades.frozen import FROZEN, OldRelease, Release

TOLD: Final[dict[str, Any]] = json.loads((FROZEN / "told.json").read_text("utf-8"))
FACTS: Final = [Fact(*fact) for fact in TOLD["facts"]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the frozen log, as its daemon left it."""
    (tmp_path / "synrepl.db").write_bytes(gzip.decompress((FROZEN / "log.db.gz").read_bytes()))
    return tmp_path


def tailed(daemon: Daemon, folder: Path, wanted: int) -> list[Fact]:
    """The facts that ``synrepl tail --state`` prints, and where it would go on."""
    options = ("--http", daemon.url, "--dialect", "1.163", "--state", "positions.json")
    with Release().start("tail", f"tcp:{daemon.follow}", *options, cwd=folder) as tail:
        tail.wait_until(lambda lines: sum('"rdata"' in line for line in lines) >= wanted)
        tail.terminate()
        said = [json.loads(line) for line in tail.lines if line.startswith("{")]
    return [
        Fact(one["stream"], one["writer"], one["token"], json.dumps(one["rows"], separators=(",", ":")))
        for one in said
        if one["type"] == "rdata"
    ]


def test_its_log_is_served_with_the_same_history(home: Path) -> None:
    """Facts, epoch, serial and digest; an append that is repeated with its key is answered as it was."""
    with Release().daemon(home) as daemon:
        said = status(daemon.url)
        assert [TOLD[key] for key in ("epoch", "serial", "digest")] == [
            said[key] for key in ("epoch", "serial", "digest")
        ]
        assert kept(daemon.url) == FACTS
        assert post(daemon.url, "push_rules", [made_rows("push_rules", 31)], key="once") == TOLD["answer"]
        assert post(daemon.url, "push_rules", [made_rows("push_rules", 32)])["tokens"] == [7]


def test_the_way_back_is_the_backup(home: Path, tmp_path: Path) -> None:
    """This release has added checksums to the log: the old one says so in one line, and leaves it alone."""
    with Release().daemon(home) as daemon:
        post(daemon.url, "push_rules", [made_rows("push_rules", 32)])
        facts = kept(daemon.url)
        assert daemon.terminate() in (0, -signal.SIGTERM)

    old = OldRelease(tmp_path / "release").twistd
    told = cannot_start(home, *old, "--server-name", "example.org")

    assert "has schema version 2, this release knows those up to 1 (a newer release wrote it" in told
    with Release().daemon(home) as daemon:
        assert kept(daemon.url) == facts


def test_a_changed_fact_of_its_log_is_not_served(home: Path) -> None:
    """It has no checksum: the digest of the fact before it proves it."""
    with closing(sqlite3.connect(home / "synrepl.db")) as database, database:
        database.execute("UPDATE facts SET committed_at_ms = committed_at_ms + 1 WHERE serial = 3")

    assert "serial 3 is damaged" in cannot_start(home, *TWISTD, "--server-name", "example.org")


def test_positions_of_its_follower_go_on(home: Path) -> None:
    """Each fact after them, and no other one."""
    shutil.copyfile(FROZEN / "positions.json", home / "positions.json")
    with Release().daemon(home) as daemon:
        left = [fact for fact in FACTS[FIRST:] if fact.stream != "files"]
        assert sorted(tailed(daemon, home, len(left))) == sorted(left)


@pytest.mark.parametrize("dialect", ["legacy", "current"])
def test_what_it_sent_is_read(dialect: str) -> None:
    """The same rows, in the same streams."""
    codec = codec_of(Dialect.parse(dialect), ours=CLIENT, theirs=SERVER)
    lines = (FROZEN / f"{dialect}.txt").read_bytes().splitlines()
    heard = [one for line in lines if isinstance(one := codec.parse(line), Rdata)]
    since = 0 if dialect == "legacy" else FIRST
    sent = [(fact.stream, row) for fact in FACTS[since:] for row in json.loads(fact.rows)]
    in_streams = {stream for stream, _ in sent} & {one.stream for one in heard}
    assert len(heard) == sum(stream in in_streams for stream, _ in sent)


def test_its_archive_goes_on(home: Path, tmp_path: Path) -> None:
    """The job of today appends what is new, and its audit finds nothing; nor does that of the old one."""
    with tarfile.open(FROZEN / "archive.tar.gz") as packed:
        packed.extractall(home, filter="data")
    archive = ("--engine", "local", "--archive", "archive")
    with Release().daemon(home) as daemon:
        post(daemon.url, "push_rules", [made_rows("push_rules", 32)])
        Release().run("pipeline", "archive", *archive, "--url", daemon.url, cwd=home)
        for release in (Release(), Release(OldRelease(tmp_path / "release"))):
            release.run("pipeline", "audit", *archive, "--url", daemon.url, cwd=home)
