"""Promotion of real daemons: in order, by force across a cut, and killed in the middle of it."""

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes.channel import eventually
from tests.processes.loading import Refused, Unanswered, drawn_seed, ids_of, report, size
from tests.processes.replicas import Cluster, Load, Member, code, numbers_of, told

KILLS: Final = size(5, 60)
ONLY_HERE: Final = 7


def role(member: Member) -> str:
    """Primary, replica or fenced."""
    found: str = member.status()["role"]
    return found


def trio(cluster: Cluster) -> tuple[Member, Member, Member]:
    """A primary, its replica, and that one's replica."""
    primary = cluster.add("primary")
    replica = cluster.add("replica", upstream=primary.front)
    chained = cluster.add("chained", upstream=replica.front)
    cluster.wait_until_same()
    return primary, replica, chained


def wait_until_fenced(member: Member) -> None:
    """Until it knows of another primary."""
    member.wait_for(lambda said: said["role"] == "fenced", "a fenced daemon")


def leftovers(member: Member) -> list[int]:
    """The numbers of the facts in the files that say what only this copy had."""
    files = sorted(member.folder.glob("synrepl.db.only-here-*.ndjson"))
    return [
        ids_of(json.dumps(json.loads(line)["rows"]))[0]
        for file in files
        for line in file.read_text().splitlines()
    ]


@pytest.mark.story
def test_a_replica_takes_over_in_order_under_load(tmp_path: Path) -> None:
    """Nothing that was acknowledged is lost, and all others find the new primary by themselves."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary, replica, chained = trio(cluster)
        with Load([replica, chained], seed=1) as load:
            load.wait_for(100)
            at = time.monotonic()
            said = replica.ask("POST", "/v1/promote", {})
            seconds = time.monotonic() - at
            assert said["role"] == role(replica) == "primary"
            wait_until_fenced(primary)
            with pytest.raises(Refused) as caught:
                primary.post("events", 10**6)
            assert (caught.value.status, code(caught.value)) == (503, "fenced")
            assert replica.front_url in told(caught.value)["moved_to"], told(caught.value)
            load.wait_for(100)

            assert primary.ask("POST", "/v1/resync", {})["role"] == "replica"
            primary.wait_for(lambda said: said["upstream"]["state"] == "live", "the old primary as a replica")
            load.wait_for(100)
        position = cluster.wait_until_same()
        assert position.epoch == said["epoch"]
        numbers = Counter(numbers_of(replica.facts()))
        assert max(numbers.values()) == 1
        assert set(numbers) == load.acknowledged
        assert leftovers(primary) == [], "nothing was only there"
        assert chained.facts() == replica.facts() == primary.facts()
        primary.post("receipts", 10**6)
        cluster.wait_until_same()

        # What they are they remain.
        for member in (primary, replica, chained):
            member.restart()
        assert [role(one) for one in (primary, replica, chained)] == ["replica", "primary", "replica"]
        chained.post("to_device", 10**6 + 1)
        cluster.wait_until_same()
    report(
        f"promotion in order: {seconds:.2f} s, {len(load.acknowledged)} facts;"
        f" {time.monotonic() - begun:.1f} s"
    )


def test_by_force_across_a_cut_both_sides_write_and_nothing_goes_unnamed(tmp_path: Path) -> None:
    """The old primary goes on until it hears of the new one; what only it took is in a file afterwards."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary, replica, chained = trio(cluster)
        with Load([primary], seed=1) as load:
            load.wait_for(50)
        primary.list_as_primary(replica)
        cluster.wait_until_same()
        with primary.native.broken(), primary.http.broken():
            for number in range(ONLY_HERE):
                primary.post("receipts", 10**6 + number, key=f"only-{number}")
            with pytest.raises(Refused) as caught:
                replica.ask("POST", "/v1/promote", {})
            assert code(caught.value) == "upstream_away"
            assert role(replica) == "replica"
            replica.ask("POST", "/v1/promote", {"force": True})
            # More than the other side, so that it is not by its length that a history is judged.
            for number in range(3 * ONLY_HERE):
                replica.post("receipts", 2 * 10**6 + number)
            chained.post("events", 3 * 10**6)
            primary.post("events", 10**6 + ONLY_HERE)
            assert [role(one) for one in (primary, replica)] == ["primary", "primary"]
        wait_until_fenced(primary)
        for number in range(ONLY_HERE):
            with pytest.raises(Refused, match="fenced"):
                primary.post("receipts", 10**6 + number, key=f"only-{number}")
        primary.ask("POST", "/v1/resync", {})
        cluster.wait_until_same()
        only_here = [10**6 + number for number in range(ONLY_HERE + 1)]
        assert leftovers(primary) == only_here
        kept = set(numbers_of(primary.facts()))
        both = {*load.acknowledged, *only_here, *range(2 * 10**6, 2 * 10**6 + 3 * ONLY_HERE), 3 * 10**6}
        assert both == kept | set(only_here)
        said = primary.status()["upstream"]["only_here"]
        assert [(primary.folder / one).exists() for one in said] == [True], said
    report(f"promotion by force: {time.monotonic() - begun:.1f} s")


def test_a_kill_while_it_is_promoted_leaves_one_primary_or_none(tmp_path: Path) -> None:
    """Whatever the moment, no two daemons are primary in one epoch, and what was acknowledged stays."""
    seed = drawn_seed()
    chance = random.Random(seed)
    begun = time.monotonic()
    ended: Counter[str] = Counter()
    with Cluster(tmp_path) as cluster:
        one = cluster.add("one")
        two = cluster.add("two", upstream=one.front)
        cluster.wait_until_same()
        load = Load([one, two], seed=seed)
        with load:
            for _ in range(KILLS):
                load.wait_for(20)
                old, new = (one, two) if role(one) == "primary" else (two, one)
                victim = chance.choice((old, new))
                answer = _promote_later(new)
                time.sleep(chance.uniform(0, 0.15))  # no event tells of its inside
                victim.restart(upstream=(new if victim is old else old).front if victim is new else None)
                answer.join(60)
                assert not answer.is_alive()
                ended[_settled(one, two, old, new, seed)] += 1
        position = cluster.wait_until_same()
        numbers = Counter(numbers_of(one.facts()))
        named = set(leftovers(one)) | set(leftovers(two))
        assert max(numbers.values()) == 1, f"seed {seed}: a fact is there twice"
        assert load.acknowledged <= set(numbers) | named, f"seed {seed}: acknowledged facts are lost"
    report(
        f"promotion, killed: {dict(ended)}, epoch {position.epoch}, {len(named)} facts in files, of which"
        f" {len(named - set(numbers))} are only there,"
        f" {load.repeats} asked again; {time.monotonic() - begun:.1f} s"
    )


def _promote_later(member: Member) -> threading.Thread:
    def work() -> None:
        try:
            member.ask("POST", "/v1/promote", {})
        except (Refused, Unanswered):
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _settled(one: Member, two: Member, old: Member, new: Member, seed: int) -> str:
    """How it ended, once one is primary and the other one its replica."""

    def stand() -> Any:
        said = {member.name: member.status() for member in (one, two)}
        roles = {name: part["role"] for name, part in said.items()}
        primaries = [part["epoch"] for part in said.values() if part["role"] == "primary"]
        if len(primaries) == 2:
            assert len(set(primaries)) == 2, f"seed {seed}: two primaries in epoch {primaries[0]}"
            return None
        for member in (one, two):
            if said[member.name]["state"] in ("fenced", "stopped"):
                member.ask("POST", "/v1/resync", {})
                return None
        if said[old.name]["state"] == "handing over" and roles[new.name] == "replica":
            # It would wait for a quarter of a minute for who has died before it could take over.
            there = said[new.name]
            end = {"seconds": 0, "uuid": there["uuid"], "address": there["address"]}
            old.ask("POST", "/v1/handover", end)
            return None
        if [part["upstream"]["state"] for part in said.values() if part["upstream"]] != ["live"]:
            return None
        return "done" if roles[new.name] == "primary" else "not done"

    how: str = eventually(stand, lambda: f"one primary (seed {seed})\n{one.describe()}\n{two.describe()}")
    return how
