"""A load on a whole deployment, all on one disk.

``twistd synrepl``, threads that post, `synrepl append`, and two `synrepl tail --state`: over lines and over
the changelog, whose output goes to files.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from synrepl.storage.engine import SQLEngine
from synrepl.storage.position_files import FilePositions
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.facts import Fact
from synrepl.streams.writer import Writer
from tests.crash.scenarios import Acknowledge, Acknowledged, Scenario
from tests.power.facts import Lost, check_facts, check_log
from tests.processes.loading import PATIENCE_SECONDS, Asker, changelog, drawn_seed, ids_of, made_rows
from tests.service.processes import ROOT, Daemon

__all__ = ["DaemonLoad"]

STREAMS: Final = ("events", "receipts", "to_device")
POSTS: Final = 60
"""The requests of each thread in each life of the daemon."""

LIVES: Final = 2
LINES: Final = 60
"""The rows that `synrepl append` appends in each life."""

STARTED_EVERY: Final = 25
"""After one cut of so many a daemon is started, too."""

STEP_SECONDS: Final = 0.05


class DaemonLoad(Scenario):
    """What a homeserver, an operator's script and two consumers do, with a restart in between."""

    def prepare(self) -> None:
        # An operator's folder, and the outputs that the shell opens.
        (self.position / "daemon").mkdir(parents=True)
        for name in ("lines", "changelog"):
            (self.position / f"{name}.state.out").touch()

    def run(self, acknowledge: Acknowledge) -> None:
        numbers = iter(range(1, 10**9))
        lock = threading.Lock()

        def request(count: int) -> list[int]:
            with lock:
                found = [next(numbers) for _ in range(count)]
            acknowledge(("sending", found))
            return found

        for life in range(LIVES):
            with ExitStack() as stack:
                daemon = stack.enter_context(Daemon(self.position / "daemon"))
                states = [self.position / "lines.state", self.position / "changelog.state"]
                tail = (daemon.follow, "--http", daemon.url), (daemon.url,)
                for target, state in zip(tail, states, strict=True):
                    stack.enter_context(_tail(*target, state=state))
                posting = [
                    threading.Thread(target=_post, args=(daemon.url, life * 10 + one, request, acknowledge))
                    for one in range(3)
                ]
                for thread in posting:
                    thread.start()
                _append_lines(daemon.url, request, acknowledge)
                for thread in posting:
                    thread.join()
                _wait_for(states[1], daemon.url)
                daemon.terminate()

    def engine(self) -> SQLEngine:
        """The daemon's log, not open."""
        return SQLEngine(SQLiteDatabase(self.position / "daemon" / "synrepl.db"))

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        engine = self.engine()
        positions = engine.open().positions
        facts = check_log(engine, acknowledged)
        engine.close()
        self._check_lines(facts, positions)
        self._check_changelog(facts)
        if self.position.name.isdigit() and not int(self.position.name) % STARTED_EVERY:
            with Daemon(self.position / "daemon") as daemon:
                found = list(changelog(daemon.url))
                assert found[: len(facts)] == facts
                check_facts(found, acknowledged)
                daemon.terminate()

    def _check_lines(self, facts: Sequence[Fact], positions: Any) -> None:
        """The saved positions are not above the log's, and all that is not above them was printed."""
        saved = FilePositions(self.position / "lines.state").load()
        printed = self._printed("lines")
        for stream, writers in saved.items():
            if stream.startswith("("):
                continue  # what is saved beside the positions
            for writer, token in writers.items():
                assert token <= positions.get(Writer(stream, writer), 0), f"{writer} of {stream}: {token}"
        for fact in facts:
            if fact.token <= saved.get(fact.stream, {}).get(fact.writer, 0):
                _check_printed(fact, printed, "lines")

    def _check_changelog(self, facts: Sequence[Fact]) -> None:
        place = FilePositions(self.position / "changelog.state").load_place()
        if place is None or not place.serial:
            return
        assert place.serial <= len(facts), f"{place} is beyond the log, which ends at {len(facts)}"
        assert place.digest in ("", facts[place.serial - 1].digest)
        printed = self._printed("changelog")
        for fact in facts[: place.serial]:
            _check_printed(fact, printed, "changelog")

    def _printed(self, name: str) -> set[int]:
        found: set[int] = set()
        for line in (self.position / f"{name}.state.out").read_bytes().split(b"\n")[:-1]:
            found.update(ids_of(line.decode(errors="replace")))
        return found


def _check_printed(fact: Fact, printed: set[int], where: str) -> None:
    for number in set(ids_of(fact.rows.decode())) - printed:
        raise Lost(f"fact {number} is not in the output of the tail over {where}, whose state is beyond it")


@contextmanager
def _tail(*target: str, state: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "synrepl", "tail", *target, "--from", "earliest", "--state", str(state)]
    with state.with_name(f"{state.name}.out").open("ab") as output:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        running = subprocess.Popen(command, stdout=output, stdin=subprocess.DEVNULL, env=environment)
    try:
        yield
    finally:
        running.terminate()
        running.wait(PATIENCE_SECONDS)


def _post(url: str, seed: int, request: Any, acknowledge: Acknowledge) -> None:
    chance = random.Random(drawn_seed() + seed)
    with Asker(url) as asker:
        for _ in range(POSTS):
            stream, numbers = chance.choice(STREAMS), request(chance.choice((1, 1, 2, 10)))
            facts = [made_rows(stream, number) for number in numbers]
            key = f"{seed}-{numbers[0]}" if chance.random() < 0.5 else None
            answer = asker.post(stream, facts, writer=f"w{seed % 10}", key=key)
            serials = [answer["first_serial"] + at for at in range(len(numbers))]
            acknowledge(("append", [numbers[0], serials]))


def _append_lines(url: str, request: Any, acknowledge: Acknowledge) -> None:
    command = [sys.executable, "-m", "synrepl", "append", "to_device", "--url", url, "--writer", "script"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as appending:
        assert appending.stdin is not None
        assert appending.stdout is not None
        for _ in range(LINES):
            (number,) = request(1)
            appending.stdin.write(json.dumps(made_rows("to_device", number)[0]).encode() + b"\n")
            appending.stdin.flush()
            acknowledge(("append", [number, [json.loads(appending.stdout.readline())["serial"]]]))
        appending.stdin.close()


def _wait_for(state: Path, url: str) -> None:
    """Until the tail over the changelog has saved the end of the log."""
    with Asker(url) as asker:
        serial = json.loads(asker.ask("GET", "/v1/status"))["serial"]
    until = time.monotonic() + PATIENCE_SECONDS
    while not state.exists() or json.loads(state.read_bytes())["serial"] < serial:
        assert time.monotonic() < until, "the tail has not come to the end"
        time.sleep(STEP_SECONDS)
