"""Made the folder of the frozen release. It is here to say how; what it made never changes.

Run once, with an empty folder beside the wheel::

    python -m tests.upgrades.freeze

A daemon of the release takes facts in some streams (single, several rows, several facts at once, an
idempotency key, a file), a follower of the release keeps positions after the first of them, sockets record
what it sends in two dialects, and its job writes an archive.
"""

import gzip
import hashlib
import json
import shutil
import socket
import sqlite3
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.processes.channel import SECRET, eventually, kept
from tests.processes.loading import made_rows
from tests.upgrades.frozen import FROZEN, OldRelease, Release

STREAMS: Final = ("events", "receipts", "push_rules", "to_device")
FIRST: Final = 20
"""How many facts the follower has seen, whose positions are kept."""
REPLICATE: Final = {
    "legacy": b"".join(b"REPLICATE %b 0\n" % stream.encode() for stream in STREAMS),
    "current": b"NAME old\nREPLICATE\n",
}
FILE: Final = b"bytes of a file of release 26.11.1\n"
FILE_SHA256: Final = hashlib.sha256(FILE).hexdigest()


def post(url: str, stream: str, facts: list[Any], key: str | None = None) -> Any:
    """Append."""
    body = {"facts": facts} | ({} if key is None else {"idempotency_key": key})
    headers = {"Authorization": f"Bearer {SECRET}"}
    request = urllib.request.Request(f"{url}/v1/streams/{stream}/facts", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def fill(url: str) -> None:
    """The facts."""
    for number in range(1, FIRST + 1):
        stream = STREAMS[number % len(STREAMS)]
        post(url, stream, [made_rows(stream, number)])


def fill_more(url: str) -> Any:
    """More of them; returns the answer to the append with a key."""
    post(url, "receipts", [made_rows("receipts", number) for number in range(21, 31)])
    request = urllib.request.Request(f"{url}/v1/files/sha256/{FILE_SHA256}", FILE, method="PUT")
    urllib.request.urlopen(request).close()
    post(url, "files", [[["create", "note.txt", FILE_SHA256, len(FILE)]]])
    return post(url, "push_rules", [made_rows("push_rules", 31)], key="once")


class Recording:
    """What the daemon sends on one connection."""

    def __init__(self, address: str, asked: bytes) -> None:
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)))
        self._connection.sendall(asked)
        self.received = b""

    def read_until(self, wanted: bytes) -> None:
        """Until it has sent this."""
        while wanted not in self.received:
            self.received += self._connection.recv(65536)


def main() -> None:
    """Make everything."""
    home = Path(tempfile.mkdtemp())
    old = OldRelease(home / "release")
    release = Release(old)
    with release.daemon(home / "daemon") as daemon:
        fill(daemon.url)
        with release.start(
            *("tail", f"tcp:{daemon.follow}", "--http", daemon.url, "--from", "earliest"),
            *("--dialect", "1.163", "--state", "positions.json"),
            cwd=home,
        ) as tail:
            tail.wait_until(lambda lines: sum('"rdata"' in line for line in lines) >= FIRST)
            eventually((home / "positions.json").exists, "positions")
            tail.terminate()
        recordings = {dialect: Recording(daemon.follow, asked) for dialect, asked in REPLICATE.items()}
        recordings["current"].read_until(b"POSITION user_signature")
        answer = fill_more(daemon.url)
        facts = kept(daemon.url)
        place = json.load(urllib.request.urlopen(f"{daemon.url}/v1/status"))
        for dialect, recording in recordings.items():
            recording.read_until(b"~31~")
            (FROZEN / f"{dialect}.txt").write_bytes(recording.received)
        release.run(
            "pipeline", "archive", "--engine", "local", "--url", daemon.url, "--archive", "archive", cwd=home
        )
        daemon.terminate()
    with sqlite3.connect(home / "daemon" / "synrepl.db") as log:
        log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    log.close()
    (FROZEN / "log.db.gz").write_bytes(gzip.compress((home / "daemon" / "synrepl.db").read_bytes(), mtime=0))
    shutil.copyfile(home / "positions.json", FROZEN / "positions.json")
    with tarfile.open(FROZEN / "archive.tar.gz", "w:gz") as packed:
        packed.add(home / "archive", "archive")
    told = {
        "epoch": place["epoch"],
        "serial": place["serial"],
        "digest": place["digest"],
        "answer": answer,
        "facts": [list(fact) for fact in facts],
    }
    (FROZEN / "told.json").write_text(json.dumps(told, indent=1) + "\n")
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
