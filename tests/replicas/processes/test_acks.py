"""Facts that a replica acknowledged outlive the disk of the primary: kills of real daemons under load."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.processes.loading import Asker, Refused, Unanswered, ids_of, made_rows, report, size
from tests.processes.replicas import Cluster, Member, code, told

KILLS: Final = size(3, 100)
WRITERS: Final = 3


class AcksLoad:
    """Posts facts with acks=1 from several threads. `acknowledged` are those that got an answer."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.trouble: list[str] = []
        self._numbers = itertools.count(1)

    @contextmanager
    def running(self, member: Member) -> Iterator[None]:
        """Post at this member meanwhile."""
        end = threading.Event()
        threads = [
            threading.Thread(target=self._run, args=(member, end), daemon=True) for _ in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()
            for thread in threads:
                thread.join(60)

    def wait_for(self, count: int) -> None:
        """Until so many more are acknowledged."""
        want, until = len(self.acknowledged) + count, time.monotonic() + 60
        while len(self.acknowledged) < want:
            assert time.monotonic() < until, (self.trouble[-3:], len(self.acknowledged), want)
            threading.Event().wait(0.01)

    def _run(self, member: Member, end: threading.Event) -> None:
        while not end.is_set():
            number = next(self._numbers)
            body = msgspec.json.encode(
                {"facts": [made_rows("to_device", number)], "idempotency_key": str(number)}
            )
            try:
                with Asker(member.url) as asker:
                    asker.ask("POST", "/v1/streams/to_device/facts?acks=1&timeout=2", body)
            except (Unanswered, Refused) as error:
                self.trouble.append(repr(error))
                if isinstance(error, Unanswered):
                    return
            else:
                self.acknowledged.add(number)


def numbers(member: Member) -> set[int]:
    """The numbers of all facts that it has."""
    facts = (fact for fact in member.facts() if fact.stream == "to_device")
    return {number for fact in facts for number in ids_of(fact.rows.decode())}


@pytest.mark.slow
def test_no_acknowledged_fact_is_lost_with_the_disk_of_a_primary(tmp_path: Path) -> None:
    """Three replicas, one lagging, one of other streams; promoting the wrong one is refused each time."""
    chance, load = random.Random(5), AcksLoad()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("n0")
        others = [cluster.add(name, upstream=primary.front) for name in ("n1", "n2")]
        cluster.add("filtered", "--upstream-streams", "receipts", "--resync-on-fork", upstream=primary.front)
        for _ in range(KILLS):
            cluster.wait_until_same()
            chance.shuffle(others)
            lagging, right = others
            with load.running(primary):
                load.wait_for(10)
                lagging.kill()
                load.wait_for(10)
                primary.kill()
            for file in primary.folder.glob("synrepl.db*"):
                file.unlink()
            lagging.start()
            with pytest.raises(Refused) as refusal:
                lagging.ask("POST", "/v1/promote", {"force": True})
            assert "others_ahead" == code(refusal.value), told(refusal.value)
            assert [right.name] == [one["name"] for one in told(refusal.value)["ahead"]]
            right.ask("POST", "/v1/promote", {"force": True})
            assert load.acknowledged - numbers(right) == set()
            primary.upstream = right.front
            primary.start()
            primary, others = right, [lagging, primary]
    report(f"{KILLS} primaries lost with their disks, {len(load.acknowledged)} facts acknowledged, 0 lost")
