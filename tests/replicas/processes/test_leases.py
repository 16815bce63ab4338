"""A replica that stays away: its lease ends, its part of the log goes; and if it comes back after all."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.channel import eventually
from tests.processes.loading import Asker, Refused, report
from tests.processes.replicas import Cluster, Member, code, fill

FACTS = 5_000
SHORT = ("--lease-seconds", "1", "--retain-seconds", "1")


def lease_of(primary: Member, name: str) -> dict[str, Any]:
    """What the primary says of this one's lease."""
    (lease,) = [one for one in primary.status()["leases"] if one["name"] == name]
    return dict(lease)


def in_use(path: Path) -> int:
    """Bytes of a database that hold something."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        pages, free, size = (
            database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


@contextmanager
def always_answers(member: Member) -> Iterator[list[tuple[str, int]]]:
    """It is asked for its log all the time, and each answer must be a whole one; gives what it was then."""
    seen: list[tuple[str, int]] = []
    trouble: list[str] = []
    end = threading.Event()

    def run() -> None:
        while not end.wait(0.01):
            try:
                with Asker(member.url) as asker:
                    lines = asker.ask("GET", "/v1/changelog?since=0&compacted=true").splitlines()
                seen.append((member.status()["state"], len(lines)))
            except Refused as refused:
                # Once, and retryable: what was read was half of the one and half of the other.
                if code(refused) != "replaced":
                    trouble.append(repr(refused))
            except Exception as error:
                trouble.append(repr(error))
                return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        end.set()
        thread.join(60)
    assert trouble == []


def test_a_replica_that_stays_away_loses_its_lease_and_joins_again(tmp_path: Path) -> None:
    """The disk is not filled for one who is gone; and nobody needs to be told when it is back."""
    begun = time.monotonic()
    (tmp_path / "primary").mkdir()
    fill(tmp_path / "primary" / "synrepl.db", 100)
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary", *SHORT)
        replica = cluster.add("replica", "--stale-seconds", "1", upstream=primary.front)
        cluster.wait_until_same()
        had = replica.status()["serial"]
        replica.stop()
        uuid = lease_of(primary, "replica")["uuid"]
        with Asker(primary.url) as asker:
            row = ["!r:a", "m.read", "@a:a", "$e:a", None, {"data": "x" * 500}]
            asker.post("receipts", [[row]] * FACTS)
        before = in_use(primary.database)

        def ended() -> Any:
            lease = lease_of(primary, "replica")
            return lease if lease["ended"] else None

        lease = eventually(ended, primary.describe)
        assert "no contact for" in lease["reason"], lease
        (described,) = primary.status()["replicas"]
        assert (described["state"], described["why"]) == ("ended", lease["reason"])
        primary.wait_for(lambda said: said["trimmed_upto"] >= had + FACTS // 2, "a log that is trimmed")
        eventually(lambda: in_use(primary.database) < before / 2, "a database with room in it")
        freed = before - in_use(primary.database)

        # It serves what it has until it has it all again.
        with primary.native.broken(), primary.http.broken():
            replica.start()
            replica.wait_for(lambda said: said["state"] == "stale", "a stale replica")
            assert not replica.is_ready()
            # Before it can connect: it is to be asked while it joins.
            primary.native.slow(300_000)
        with always_answers(replica) as seen:
            # A JOIN may have come and gone between two looks; that there was one can be seen ever after.
            replica.wait_for(
                lambda said: said["upstream"]["join"] or said["trimmed_upto"], "a replica that joins"
            )
            primary.native.slow(None)
            cluster.wait_until_same()
        assert replica.status()["trimmed_upto"] >= had + FACTS // 2
        assert replica.is_ready()
        states = {state for state, _ in seen}
        assert "stale" in states, states
        assert {count for state, count in seen if state == "stale"} <= {had, primary_left(primary)}
        assert lease_of(primary, "replica")["uuid"] == uuid, "it is the same replica"
        assert not lease_of(primary, "replica")["ended"]
    report(
        f"lease: ended, {freed} of {before} bytes freed, joined again; {len(seen)} answers meanwhile"
        f" ({sorted(states)}); {time.monotonic() - begun:.1f} s"
    )


def primary_left(primary: Member) -> int:
    """How many facts it has left."""
    with Asker(primary.url) as asker:
        return len(asker.ask("GET", "/v1/changelog?since=0&compacted=true").splitlines())


def test_leases_outlive_a_restart_and_operators_end_and_make_them(tmp_path: Path) -> None:
    """What is held for whom is no matter of one process; and who is dropped stays out until let in again."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary", "--retain-seconds", "1")
        replica = cluster.add("replica", upstream=primary.front)
        primary.post("events", *range(1, 50))
        position = cluster.wait_until_same()
        eventually(lambda: lease_of(primary, "replica")["serial"] == position.serial, "an acknowledged lease")
        replica.stop()
        primary.stop()
        primary.start()
        lease = lease_of(primary, "replica")
        assert (lease["serial"], lease["ended"]) == (position.serial, None)
        primary.post("events", *range(50, 100))
        primary.restart()
        assert lease_of(primary, "replica")["serial"] == position.serial

        primary.ask("DELETE", "/v1/leases/replica")
        with pytest.raises(Refused, match="unknown_lease"):
            primary.ask("DELETE", "/v1/leases/nobody")
        replica.start()
        said = replica.wait_for(lambda said: said["upstream"]["refusal"] and said, "a refused replica")
        assert said["upstream"]["refusal"]["code"] == "unknown"
        assert said["serial"] == position.serial, "what it has it serves"
        primary.restart()
        assert lease_of(primary, "replica")["reason"] == "dropped by an operator"

        primary.ask("POST", "/v1/leases", {"name": "replica"})
        with pytest.raises(Refused) as caught:
            primary.ask("POST", "/v1/leases", {"name": "replica"})
        assert code(caught.value) == "known"
        replica.restart()
        cluster.wait_until_same()
    report(f"leases: {time.monotonic() - begun:.1f} s")
