"""A primary, its replica, and that one's replica, under load, while everything that can break does."""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.processes.loading import drawn_seed, report, size
from tests.processes.replicas import Cluster, Load, Member, Reading, numbers_of

KILLS: Final = size(6, 100)
"""In each of the two tests."""

STALL_SECONDS: Final = 0.5
GARBLED_SECONDS: Final = 2.0
FLIP_EVERY: Final = 5


class Trouble:
    """Kills, and links that are cut, stalled and garbled, one after the other; `done` counts them."""

    def __init__(self, chance: random.Random, members: list[Member]) -> None:
        self.done: Counter[str] = Counter()
        self._chance = chance
        self._members = members

    def make(self) -> None:
        """One kill, and something that happens to a link."""
        chance = self._chance
        link = chance.choice([proxy for member in self._members[:2] for proxy in member.links()])
        what = chance.choice(("cut", "stalled", "garbled", "broken", "cut soon"))
        victim = chance.choice(self._members)
        self.done[what] += 1
        self.done[f"killed {victim.name}"] += 1
        match what:
            case "cut":
                link.cut()
                victim.restart()
            case "cut soon":
                link.cut_after(chance.randrange(1, 20_000))
                victim.restart()
            case "broken":
                with link.broken():
                    victim.restart()
            case "garbled":
                link.flip(chance.randint(1, FLIP_EVERY), up=chance.random() < 0.3)
                victim.restart()
                before, until = link.flipped, time.monotonic() + GARBLED_SECONDS
                while link.flipped < before + 3 and time.monotonic() < until:
                    self._pass(0.02)
                link.flip(0)
            case _:
                with link.stalled():
                    self._pass(chance.uniform(0, STALL_SECONDS))
                    victim.restart()

    @staticmethod
    def _pass(seconds: float) -> None:
        """Let it last: there is no event at which trouble has lasted long enough."""
        time.sleep(seconds)


@pytest.mark.parametrize("second", ["native", "http"])
def test_nothing_is_lost_twice_or_wrong_whatever_breaks(tmp_path: Path, second: str) -> None:
    """All three have the same history in the end, with each acknowledged fact in it once; and nobody ever
    read from a replica what is not in it."""
    seed = drawn_seed()
    chance = random.Random(seed)
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = cluster.add("replica", upstream=primary.front)
        chained = cluster.add("chained", upstream=replica.front if second == "native" else replica.front_url)
        members = [primary, replica, chained]
        trouble = Trouble(chance, members)
        cluster.wait_until_same()
        load = Load(members, seed=seed)
        load.may_be_misheard = True
        with Reading([replica, chained]) as reading:
            with load:
                for _ in range(KILLS):
                    load.wait_for(chance.randint(0, 30), seconds=60)
                    trouble.make()
                load.wait_for(30, seconds=60)
            position = cluster.wait_until_same(seconds=60)
        facts = primary.facts()
        assert facts[-1].digest == position.digest
        numbers = Counter(numbers_of(facts))
        assert not [one for one, times in numbers.items() if times > 1], f"seed {seed}: facts are there twice"
        assert load.acknowledged <= set(numbers), f"seed {seed}: acknowledged facts are lost"
        for member in members[1:]:
            assert member.facts() == facts, f"seed {seed}: {member.name} has another history"
        reading.check(facts)
        flipped = sum(proxy.flipped for member in members for proxy in member.links())
    report(
        f"chaos ({second}): {KILLS} kills {dict(trouble.done)}, {flipped} bytes flipped, {len(facts)} facts"
        f" ({load.repeats} asked again: {sorted(load.refusals)}), {reading.facts} facts and {reading.rows}"
        f" rows read meanwhile, {time.monotonic() - begun:.1f} s"
    )
