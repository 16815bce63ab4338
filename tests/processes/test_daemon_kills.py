"""The daemon through SIGKILL at any moment under load: acknowledged means kept, once, in one history."""

import itertools
import random
import threading
import time
from pathlib import Path

from synrepl.streams.digest import EMPTY, verify
from tests.processes.loading import (
    PATIENCE_SECONDS,
    Asker,
    Recorder,
    Refused,
    Unanswered,
    changelog,
    drawn_seed,
    ids_of,
    made_rows,
    report,
    size,
)
from tests.service.processes import Daemon

KILLS = size(8, 50)
WRITERS = 4
STREAMS = ("events", "receipts", "to_device", "events")
ENOUGH_ACKNOWLEDGED = 30
"""At most so many appends are acknowledged between two kills, so that many kills come early in a run."""


class Writers:
    """Several writers; each asks again, with the same key, until it has its answer."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.appends = 0
        self.repeats = 0
        self.trouble: list[str] = []
        self.changed = threading.Condition()
        self._url = ""
        self._life = -1
        self._is_ending = False
        self._numbers = itertools.count(1)
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(WRITERS)]

    def start(self) -> None:
        """Begin to write, once there is a daemon."""
        for thread in self._threads:
            thread.start()

    def serve_from(self, url: str) -> None:
        """A new life of the daemon: who had no answer may ask again."""
        with self.changed:
            self._url = url
            self._life += 1
            self.changed.notify_all()

    def finish(self) -> None:
        """Begin nothing new, and wait for every answer."""
        with self.changed:
            self._is_ending = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a writer has no answer yet"
        assert self.trouble == []

    def wait_for_appends(self, count: int) -> None:
        """Until so many were acknowledged in all."""
        with self.changed:
            self.changed.wait_for(lambda: self.appends >= count or bool(self.trouble), PATIENCE_SECONDS)
            assert self.appends >= count, (self.appends, count, self.trouble)

    def _run(self, writer: int) -> None:
        try:
            chance = random.Random(writer)
            while not self._is_ending:
                with self.changed:
                    numbers = [next(self._numbers) for _ in range(chance.randint(1, 20))]
                self._append(writer, numbers)
        except BaseException as error:
            with self.changed:
                self.trouble.append(repr(error))
                self.changed.notify_all()

    def _append(self, writer: int, numbers: list[int]) -> None:
        stream = STREAMS[writer]
        facts = [made_rows(stream, one) for one in numbers]
        used = -1
        while True:
            with self.changed:
                came = self.changed.wait_for(lambda: self._life > used, PATIENCE_SECONDS)  # noqa: B023
                assert came, "the daemon did not come back"
                url, used = self._url, self._life
            try:
                with Asker(url) as asker:
                    answer = asker.post(stream, facts, writer=f"w{writer}", key=f"{writer}-{numbers[0]}")
                break
            except Unanswered:
                with self.changed:
                    self.repeats += 1
            except Refused as error:
                # The daemon stays, so its refusal is final; appends to a healthy one are not refused.
                raise AssertionError(f"writer {writer} was refused") from error
        with self.changed:
            self.appends += 1
            for position, number in enumerate(numbers):
                self.acknowledged[number] = (answer["first_serial"] + position, answer["tokens"][position])
            self.changed.notify_all()


def test_a_killed_daemon_keeps_what_it_acknowledged_and_its_followers_go_on(tmp_path: Path) -> None:
    """A homeserver that got its answer has told its own clients; and nobody restarts workers by hand."""
    seed = drawn_seed()
    chance = random.Random(seed)
    begun = time.monotonic()
    writers = Writers()
    daemon = Daemon(tmp_path)
    try:
        port, http_port = (int(address.rsplit(":", 1)[1]) for address in (daemon.follow, daemon.url))
        tail = ("-m", "synrepl", "tail", daemon.follow, "--http", daemon.url, "--from", "earliest")
        with (
            Recorder(*tail, cwd=tmp_path) as current,
            Recorder(*tail, "--dialect", "legacy", cwd=tmp_path) as legacy,
        ):
            for follower in (current, legacy):
                follower.wait_for_line('"position"')
            writers.start()
            writers.serve_from(daemon.url)
            for _ in range(KILLS):
                writers.wait_for_appends(writers.appends + chance.randint(0, ENOUGH_ACKNOWLEDGED))
                daemon.kill()
                daemon = Daemon(tmp_path, port=port, http_port=http_port)
                writers.serve_from(daemon.url)
            writers.wait_for_appends(writers.appends + ENOUGH_ACKNOWLEDGED)
            writers.finish()

            facts = list(changelog(daemon.url))
            assert [fact.serial for fact in facts] == list(range(1, len(facts) + 1)), f"seed {seed}"
            assert verify(facts, EMPTY) is None, f"seed {seed}"
            kept = {ids_of(fact.rows.decode())[0]: (fact.serial, fact.token) for fact in facts}
            assert len(kept) == len(facts), f"seed {seed}: a fact is there twice"
            assert kept == writers.acknowledged, f"seed {seed}"

            names = (("current", current), ("legacy", legacy))
            for name, follower in names:
                follower.wait_until(
                    lambda: len(follower.facts) >= len(facts),  # noqa: B023
                    f"all {len(facts)} facts at the {name} follower (seed {seed})",
                )
                had = sorted((fact.stream, fact.token, fact.number) for fact in follower.facts)
                assert had == sorted(
                    (fact.stream, fact.token, ids_of(fact.rows.decode())[0]) for fact in facts
                ), f"seed {seed}: not each fact once at the {name} follower"
    finally:
        daemon.kill()
    report(
        f"daemon: {KILLS} kills, {writers.appends} appends ({writers.repeats} asked again),"
        f" {len(facts)} facts, {time.monotonic() - begun:.1f} s"
    )
