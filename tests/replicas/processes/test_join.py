"""JOIN: a big log is copied while it grows, over links that break, to replicas that are killed."""

import random
import threading
import time
from pathlib import Path
from typing import Any, Final

from tests.processes.channel import eventually
from tests.processes.loading import MIB, PATIENCE_SECONDS, drawn_seed, memory, report, size
from tests.processes.replicas import Cluster, Load, Member, fill

BIG: Final = size(60_000, 5_000_000)
CUTS: Final = size(15, 500)
UNDER_WAY: Final = 1.5 * MIB
"""The most that a cut may cost: what sockets and proxies hold of a connection is sent again. In 16 runs of
twelve seeds it was 0.7 to 1.1 MiB."""
CUT_FACTS: Final = size(12_000, 60_000)
KILLS: Final = size(4, 30)
MARGIN: Final = 60 * MIB
"""What memory may grow by while a copy is sent or taken, however big the log is."""

JOIN_SECONDS: Final = size(60, 900)


def big(folder: Path, name: str, count: int) -> None:
    """The log of a member that starts later."""
    (folder / name).mkdir(exist_ok=True)
    fill(folder / name / "synrepl.db", count)


def joined(member: Member) -> Any:
    """Its status, once it follows."""
    said = member.status()
    return said if said["upstream"]["state"] == "live" else None


def wait_until_joined(member: Member) -> dict[str, Any]:
    """Until it follows; gives its status."""
    found: dict[str, Any] = eventually(
        lambda: joined(member), lambda: f"a whole copy\n{member.describe()}", seconds=JOIN_SECONDS
    )
    return found


def test_a_big_log_is_copied_while_it_grows(tmp_path: Path) -> None:
    """No seam between what was there and what came, and memory for neither."""
    begun = time.monotonic()
    big(tmp_path, "primary", BIG)
    filled = time.monotonic() - begun
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        with primary.native.broken():
            replica = cluster.add("replica", upstream=primary.front)
            eventually(
                lambda: replica.status()["upstream"]["state"] == "disconnected", "a replica without a link"
            )
            before = {one.name: memory(one.daemon.pid) for one in (primary, replica)}
        load = Load([primary])
        with load:
            at = time.monotonic()
            said = eventually(lambda: joined(replica), replica.describe, seconds=JOIN_SECONDS)
            seconds = time.monotonic() - at
        position = cluster.wait_until_same()
        after = {one.name: memory(one.daemon.pid, "VmHWM") for one in (primary, replica)}
    grown = {name: after[name] - before[name] for name in before}
    report(
        f"join: {BIG} facts (filled in {filled:.1f} s) and {position.serial - BIG} that came meanwhile, in"
        f" {seconds:.2f} s, {said['serial'] / seconds:.0f} facts/s, {primary.native.down / MIB:.1f} MiB;"
        " memory "
        + ", ".join(f"{name} {before[name] / MIB:.0f} MiB + {grown[name] / MIB:.1f}" for name in grown)
    )
    assert len(load.acknowledged) == position.serial - BIG
    assert max(grown.values()) <= MARGIN, grown


class Watch:
    """Asks a replica all the time whether it is whole: what says so must be."""

    def __init__(self, member: Member, digests: dict[int, str]) -> None:
        self.seen = {"joining": 0, "whole": 0}
        self.trouble: list[str] = []
        self._member = member
        self._digests = digests
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def look(self) -> dict[str, Any]:
        """Its status; what it says of itself must be true."""
        before = time.monotonic()
        is_ready = self._member.is_ready()
        said: dict[str, Any] = self._member.ask("GET", "/v1/status")
        if said["state"] == "joining":
            assert said["serial"] == 0, said
            self.seen["joining"] += 1
        else:
            assert self._digests[said["serial"]] == said["digest"], "it is no copy"
            assert said["serial"] >= CUT_FACTS, f"serial {said['serial']} is not all"
            self.seen["whole"] += 1
        # It may have been killed and started again between the two requests.
        is_same = said["uptime_seconds"] > time.monotonic() - before
        assert not (is_ready and is_same and said["state"] == "joining"), said
        return said

    def _run(self) -> None:
        while not self._end.wait(0.02):
            try:
                self.look()
            except (AssertionError, KeyError) as error:
                self.trouble.append(repr(error))
                return
            except Exception:  # it is killed now and then
                continue

    def stop(self) -> None:
        """Look no more."""
        self._end.set()
        self._thread.join(PATIENCE_SECONDS)
        assert self.trouble == []
        assert self.seen["joining"], "nobody has seen it joining"


def wipe(member: Member) -> None:
    """Kill it, and take all away that it has."""
    member.kill()
    for path in member.folder.glob("synrepl.db*"):
        if path.is_file():
            path.unlink()


def digests_of(primary: Member) -> dict[int, str]:
    """Every true one."""
    return {fact.serial: fact.digest for fact in primary.facts()}


def test_a_join_that_is_cut_goes_on_and_nobody_takes_it_for_whole(tmp_path: Path) -> None:
    """A part of a copy looks like a copy to nobody, whenever the link breaks; and what came is not asked for
    again."""
    seed = drawn_seed()
    chance = random.Random(seed)
    begun = time.monotonic()
    big(tmp_path, "primary", CUT_FACTS)
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        digests = digests_of(primary)
        link = primary.native
        replica = cluster.add("replica", upstream=primary.front)
        wait_until_joined(replica)
        whole = link.down
        cuts, joins, done = 0, 0, 0
        costs = []
        while cuts < CUTS:
            wipe(replica)
            at = link.down
            # Before it comes, so that the first of its bytes can be the last.
            link.cut_after(chance.randrange(1, whole // 4))
            replica.start()
            watch = Watch(replica, digests)
            highest = resumed = here = 0
            while True:
                links = link.links
                eventually(lambda: not link.is_to_be_cut or joined(replica), replica.describe)
                if link.is_to_be_cut:
                    break
                cuts, here = cuts + 1, here + 1
                link.cut_after(chance.randrange(1, whole // 4))
                eventually(lambda: link.links > links or joined(replica), "another attempt")  # noqa: B023
                said = watch.look()
                if said["upstream"]["join"] is not None:
                    done = said["upstream"]["join"]["done"]
                    resumed += done > 0
                    highest = max(highest, done)
            wait_until_joined(replica)
            watch.stop()
            joins += 1
            costs.append((link.down - at) / whole)
            assert replica.place() == primary.place(), f"seed {seed}"
            assert resumed or here < 4, f"seed {seed}: every one of {here + 1} attempts began with nothing"
            link.cut_after(10**12)
    report(
        f"join, cut: {cuts} cuts in {joins} joins of {whole / MIB:.1f} MiB, which took"
        f" {sum(costs) / joins:.2f} times the bytes of one without cuts; {time.monotonic() - begun:.1f} s"
    )
    # What was under way in sockets and proxies when the link broke is sent again.
    again = (sum(costs) - joins) * whole / cuts
    assert again < UNDER_WAY, f"seed {seed}: {again / MIB:.1f} MiB a cut; {costs}"


def test_a_replica_that_is_killed_while_it_joins_starts_as_what_it_was(tmp_path: Path) -> None:
    """In the middle of the copy and in the middle of its adoption: nothing, or all of it."""
    seed = drawn_seed()
    chance = random.Random(seed)
    begun = time.monotonic()
    big(tmp_path, "primary", CUT_FACTS)
    points: list[str] = []
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        digests = digests_of(primary)
        replica = cluster.add("replica", upstream=primary.front)
        started = time.monotonic()
        for number in range(KILLS):
            wipe(replica)
            # Slowly at first, so that there is time to choose; the end of it, and adopting, at full speed.
            primary.native.slow(chance.uniform(4, 40) * MIB)
            replica.start()
            watch = Watch(replica, digests)
            share = chance.random() if number % 2 else 0.95

            def far() -> bool:
                said = replica.status()["upstream"]
                join = said["join"]
                is_late = said["state"] in ("meanwhile", "adopting", "catching up", "live")
                return is_late or (join is not None and join["done"] >= share * join["total"] > 0)  # noqa: B023

            eventually(far, replica.describe)
            primary.native.slow(None)
            until = time.monotonic() + chance.uniform(0, 0.05)
            while time.monotonic() < until:
                pass
            points.append(replica.status()["upstream"]["state"])
            replica.kill()
            watch.stop()
            replica.start()
            after = Watch(replica, digests)
            assert after.look()["state"] in ("joining", "serving", "stale", "behind"), f"seed {seed}"
            wait_until_joined(replica)
            after.seen["joining"] += 1
            after.stop()
            assert replica.place() == primary.place(), f"seed {seed}"
            assert not list(replica.folder.glob("*.joining*")), list(replica.folder.iterdir())
    report(
        f"join, killed: {KILLS} kills in {points}, {time.monotonic() - started:.1f} s"
        f" of {time.monotonic() - begun:.1f}"
    )
