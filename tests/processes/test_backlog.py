"""A follower that is far behind: it gets all of it, while the log grows, and the daemon does not."""

import threading
import time
from pathlib import Path

import msgspec

from synrepl.storage.engine import SQLEngine
from synrepl.storage.group_commit import AppendRequest, build_group
from synrepl.storage.log_head import LogHead
from synrepl.storage.sqlite import SQLiteDatabase
from tests.processes.loading import MIB, PATIENCE_SECONDS, Asker, RawReader, made_rows, memory, report, size
from tests.service.processes import Daemon

BEHIND = size(50_000, 1_000_000)
GROUP = 10_000
MARGIN = 24 * MIB
"""What memory may grow by while a backlog is sent: a page of it, the follower's transport, SQLite's cache,
and the newest facts, of which the writing meanwhile adds up to 8 MiB (as Python holds them, twice that)."""


def fill(path: Path, count: int) -> None:
    """A log with so many facts of events, quickly: as groups that no daemon ever was asked for."""
    engine = SQLEngine(SQLiteDatabase(path))
    standing = LogHead()
    standing.load(engine.open())
    for first in range(1, count + 1, GROUP):
        numbers = range(first, min(first + GROUP, count + 1))
        facts = [msgspec.json.encode(made_rows("events", one)[:1]) for one in numbers]
        group = build_group(
            standing, [AppendRequest("events", "master", facts, None, "")], first, lambda key: None
        )
        engine.commit(group.facts, [])
        standing.advance(group.facts)
    engine.close()


class Writing:
    """Appends while something else happens."""

    def __init__(self, url: str) -> None:
        self.token = 0
        self.trouble: list[str] = []
        self._url = url
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Asker(self._url) as asker:
                while not self._is_ending.is_set():
                    facts = [made_rows("events", 1)] * 10
                    self.token = asker.post("events", facts)["tokens"][-1]
        except BaseException as error:
            self.trouble.append(repr(error))

    def finish(self) -> int:
        """Append no more; gives the last token."""
        self._is_ending.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "an append has no answer"
        assert self.trouble == []
        return self.token


def test_an_old_follower_far_behind_catches_up_while_facts_come(tmp_path: Path) -> None:
    """A worker that was down for a night must not need a restart of everything, nor stop the homeserver."""
    begun = time.monotonic()
    fill(tmp_path / "synrepl.db", BEHIND)
    filled = time.monotonic() - begun
    with Daemon(tmp_path) as daemon:
        writing = Writing(daemon.url)
        try:
            before = highest = memory(daemon.pid)
            at = time.monotonic()
            with RawReader(daemon.follow, "NAME old", "REPLICATE events 0") as reader:
                token, position = 0, None
                while position is None:
                    for line in reader.chunk():
                        if line.startswith(b"RDATA events "):
                            token += 1
                            assert int(line.split(b" ", 3)[2]) == token, (line[:100], token)
                        elif line.startswith(b"POSITION events "):
                            position = int(line.split(b" ")[2])
                            assert position == token
                        else:
                            assert not line.startswith((b"ERROR", b"POSITION", b"RDATA")), line
                    highest = max(highest, memory(daemon.pid))
                seconds = time.monotonic() - at
                assert position >= BEHIND
                written_meanwhile = position - BEHIND
                last = writing.finish()
                with Asker(daemon.url) as asker:
                    last = asker.post("events", [made_rows("events", 1)])["tokens"][-1]
                # What wrote when it was told to go live, and what came then.
                rows = (line for line in reader.lines() if line.startswith(b"RDATA events "))
                while token < last:
                    token += 1
                    assert int(next(rows).split(b" ", 3)[2]) == token
        finally:
            writing.finish()
    grown = highest - before
    report(
        f"backlog: {BEHIND} rows (filled in {filled:.1f} s) and {written_meanwhile} that came meanwhile in"
        f" {seconds:.2f} s, {position / seconds:.0f} rows/s;"
        f" memory {before / MIB:.1f} MiB + {grown / MIB:.1f}"
    )
    assert grown <= MARGIN, f"{grown / MIB:.1f} MiB more while sending a backlog"
