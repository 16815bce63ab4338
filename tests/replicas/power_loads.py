"""What is copied until the power of the copy's machine is cut, and what the copy must then have.

The primary is on another machine: a folder that is not recorded.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from synrepl.missing_rooms import missing_rooms
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.examination import Examiner
from synrepl.replicas.roles.record import RoleRecord
from synrepl.replicas.roles.role_states import Role
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.facts import decode_facts
from tests.crash.scenarios import Acknowledge, Acknowledged, Scenario
from tests.power.facts import Lost, check_log
from tests.processes.channel import eventually, status
from tests.processes.loading import PATIENCE_SECONDS, Asker, drawn_seed, ids_of, made_rows
from tests.service.processes import ROOT, Daemon

LOADS: Final = {
    "replica": "tests.replicas.power_loads:ReplicaLoad",
    "only-here": "tests.replicas.power_loads:OnlyHereLoad",
    "backup": "tests.replicas.power_loads:BackupLoad",
}

SERVED: Final = {"backup": "tests.replicas.served_backup:ServedBackup"}

STREAMS: Final = ("events", "receipts", "to_device")
STARTED_EVERY: Final = 25
"""After one cut of so many a daemon is started on the copy, or a log is restored from it."""


class _Source:
    """The primary, and what is appended to it: `elsewhere` is its folder, its ports stay."""

    def __init__(self, elsewhere: Path, acknowledge: Acknowledge) -> None:
        self.folder = elsewhere / "primary"
        self.folder.mkdir()
        self.acknowledge = acknowledge
        self._numbers = count(1)
        self._chance = random.Random(drawn_seed())
        self.daemon = Daemon(self.folder)
        self._ports = [int(at.rsplit(":", 1)[1]) for at in (self.daemon.follow, self.daemon.url)]

    def start(self) -> None:
        """Start it, where it was before."""
        self.daemon = Daemon(self.folder, port=self._ports[0], http_port=self._ports[1])

    def post(self, url: str = "", *, acks: int = 0, is_promised: bool = True) -> None:
        """Append the facts of a request, to another daemon with `url`.

        With `is_promised` the copy must have them once they are acknowledged.
        """
        stream = self._chance.choice(STREAMS)
        numbers = [next(self._numbers) for _ in range(self._chance.choice((1, 1, 2, 10)))]
        self.acknowledge(("sending", numbers))
        facts = [made_rows(stream, number) for number in numbers]
        body = msgspec.json.encode({"facts": facts, "idempotency_key": f"key {numbers[0]}"})
        path = f"/v1/streams/{stream}/facts?acks={acks}&timeout=60"
        with Asker(url or self.daemon.url) as asker:
            answer = msgspec.json.decode(asker.ask("POST", path, body))
        if is_promised:
            serials = [answer["first_serial"] + at for at in range(len(numbers))]
            self.acknowledge(("append", [numbers[0], serials]))


@contextmanager
def _source(acknowledge: Acknowledge) -> Iterator[_Source]:
    with tempfile.TemporaryDirectory() as elsewhere:
        source = _Source(Path(elsewhere), acknowledge)
        try:
            yield source
        finally:
            source.daemon.kill()


def _wait_until_live(replica: Daemon) -> None:
    eventually(lambda: status(replica.url)["upstream"]["state"] == "live", "a live replica", seconds=60)


class ReplicaLoad(Scenario):
    """A replica that joins and follows, in several lives; then it is promoted, and takes facts itself.

    What was answered with `acks` is on its disk, as is its promotion.
    """

    LIVES = 3
    POSTS = 25
    """The requests in each life of the copy."""

    def prepare(self) -> None:
        (self.position / "replica").mkdir(parents=True)

    def run(self, acknowledge: Acknowledge) -> None:
        with _source(acknowledge) as source:
            for _ in range(self.POSTS):
                source.post(is_promised=False)
            upstream = ("--upstream", f"tcp:{source.daemon.follow}", "--replica-name", "copy")
            for life in range(self.LIVES):
                with Daemon(self.position / "replica", options=upstream) as replica:
                    _wait_until_live(replica)
                    for _ in range(self.POSTS):
                        source.post(acks=1)
                    if life < self.LIVES - 1:
                        replica.terminate()
                        continue
                    source.daemon.kill()
                    with Asker(replica.url) as asker:
                        said = msgspec.json.decode(asker.ask("POST", "/v1/promote", b'{"force":true}'))
                    acknowledge(("epoch", said["epoch"]))
                    for _ in range(self.POSTS):
                        source.post(replica.url)
                    replica.terminate()

    def engine(self) -> SQLEngine:
        """The log of the replica, not open."""
        return SQLEngine(SQLiteDatabase(self.position / "replica" / "synrepl.db"))

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        engine = self.engine()
        engine.open()
        check_log(engine, acknowledged)
        notes = engine.notes.all()
        engine.close()
        epochs = [epoch for what, epoch in acknowledged if what == "epoch"]
        text = notes.get("role")
        record = None if text is None else msgspec.json.decode(text, type=RoleRecord)
        if epochs and (record is None or (record.role, record.epoch) != (Role.PRIMARY, epochs[-1])):
            raise Lost(f"it was promoted in epoch {epochs[-1]}, and remembers {record}")
        if _is_to_start(self.position):
            upstream = ("--upstream", "tcp:127.0.0.1:1")
            with Daemon(self.position / "replica", options=upstream) as replica:
                said = status(replica.url)
                assert not epochs or said["role"] == Role.PRIMARY, said
                replica.terminate()


class OnlyHereLoad(Scenario):
    """A replica that gives up facts which its primary has lost: they are in its log, or in a file beside."""

    LIVES = 3
    POSTS = 25
    """The requests in each life of the copy."""

    def prepare(self) -> None:
        (self.position / "replica").mkdir(parents=True)

    def run(self, acknowledge: Acknowledge) -> None:
        with _source(acknowledge) as source:
            upstream = ("--upstream", f"tcp:{source.daemon.follow}", "--replica-name", "copy")
            with Daemon(self.position / "replica", options=upstream) as replica:
                for _ in range(self.LIVES):
                    _wait_until_live(replica)
                    self._lose(source, replica)
                replica.terminate()

    def _lose(self, source: _Source, replica: Daemon) -> None:
        """The primary is put back to a copy of its log, and goes on otherwise."""
        source.daemon.terminate()
        source.daemon.kill()
        kept = source.folder.with_name("kept")
        shutil.copytree(source.folder, kept)
        source.start()
        for _ in range(self.POSTS):
            source.post(acks=1)
        source.daemon.kill()
        shutil.rmtree(source.folder)
        kept.rename(source.folder)
        source.start()
        source.post(is_promised=False)
        eventually(lambda: status(replica.url)["state"] == "stopped", "a stopped replica", seconds=60)
        with Asker(replica.url) as asker:
            asker.ask("POST", "/v1/resync", b"{}")
        eventually(
            lambda: status(replica.url)["digest"] == status(source.daemon.url)["digest"],
            "the history of the primary",
            seconds=60,
        )

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        folder = self.position / "replica"
        engine = SQLEngine(SQLiteDatabase(folder / "synrepl.db"))
        engine.open()
        facts = check_log(engine, [one for one in acknowledged if one[0] == "sending"])
        engine.close()
        for path in sorted(folder.glob("*.only-here-*.ndjson")):
            found = decode_facts(path.read_bytes())
            assert found, f"{path.name} is empty"
            facts += found
        there = {number for fact in facts for number in ids_of(fact.rows.decode())}
        requests = {numbers[0]: numbers for what, numbers in acknowledged if what == "sending"}
        for what, told in acknowledged:
            if what == "append" and not there.issuperset(requests[told[0]]):
                raise Lost(f"facts {requests[told[0]]} are neither in the log nor in a file beside it")


class BackupLoad(Scenario):
    """`synrepl backup --follow`, in several lives, of facts and files; half of the lives end by a kill.

    What the daemon knows to be there is there.
    """

    LIVES = 6
    POSTS = 12
    """The requests in each life of the copy."""

    def run(self, acknowledge: Acknowledge) -> None:
        with _source(acknowledge) as source:
            for life in range(self.LIVES):
                with self._following(source.daemon.url) as backup:
                    for number in range(self.POSTS):
                        source.post(is_promised=False)
                        if "files" not in missing_rooms():
                            self._put(source, f"{life}-{number}")
                        if number % 4 == 3:
                            self._tell_what_is_held(source)
                    if life % 2:
                        backup.kill()

    @staticmethod
    def _put(source: _Source, name: str) -> None:
        data = f"file {name}\n".encode() * 500
        checksum = sha256(data).hexdigest()
        with Asker(source.daemon.url) as asker:
            asker.ask("PUT", f"/v1/files/sha256/{checksum}", data)
            asker.post("files", [[["create", f"media/{name}", checksum, len(data)]]])

    @staticmethod
    def _tell_what_is_held(source: _Source) -> None:
        url = source.daemon.url
        head = status(url)["serial"]
        eventually(lambda: [one for one in status(url)["backups"] if one["serial"] >= head], "it", seconds=60)
        with Asker(url) as asker:
            (fact,) = decode_facts(asker.ask("GET", f"/v1/changelog?since={head - 1}&limit=1"))
        source.acknowledge(("held", [fact.serial, fact.digest]))

    @contextmanager
    def _following(self, url: str) -> "Iterator[subprocess.Popen[bytes]]":
        command = [sys.executable, "-m", "synrepl", "backup", "run", str(self.position / "backup")]
        running = subprocess.Popen(
            [*command, "--follow", "--name", "copy", "--url", url],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield running
        finally:
            running.terminate()
            running.wait(PATIENCE_SECONDS)

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        held = [told for what, told in acknowledged if what == "held"]
        folder = self.position / "backup"
        if not folder.exists():
            if held:
                raise Lost("the folder is gone")
            return
        found = Examiner(BackupFolder(folder)).examine()
        assert found.damages == [], found.damages
        if not held:
            return
        serial, digest = held[-1]
        if not found.whole or found.whole[-1].state.position.serial < serial:
            raise Lost(f"serial {serial} is gone: {found.whole[-1:]}")
        if found.missing_files:
            raise Lost(f"files are gone: {found.missing_files[:3]}")
        if _is_to_start(self.position):
            database = self.position / "restored.db"
            _restore(folder, database)
            engine = SQLEngine(SQLiteDatabase(database))
            engine.open()
            facts = check_log(engine, [one for one in acknowledged if one[0] == "sending"])
            engine.close()
            assert facts[serial - 1].digest == digest


class FewReplicaLoad(ReplicaLoad):
    """Few facts, for the journal that a test keeps."""

    LIVES = 2
    POSTS = 6


class FewBackupLoad(BackupLoad):
    """Few facts, for the journal that a test keeps."""

    LIVES = 2
    POSTS = 6


def _is_to_start(position: Path) -> bool:
    return position.name.isdigit() and not int(position.name) % STARTED_EVERY


def _restore(folder: Path, database: Path) -> None:
    command = [sys.executable, "-m", "synrepl", "restore", str(folder), "--database", f"sqlite:{database}"]
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
