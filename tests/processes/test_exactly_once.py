"""A worker that keeps its positions with its effects: each fact has one effect, through any kills."""

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tests.processes.loading import Asker, Recorder, drawn_seed, ids_of, report, size
from tests.processes.test_tail_kills import BATCH, Posting
from tests.service.processes import Daemon

KILLS = size(5, 50)
FACTS = size(10_000, 100_000)


def test_each_fact_has_one_effect_through_kills(tmp_path: Path) -> None:
    """This is what the library promises to workers with a database: no fact twice, none never."""
    seed = drawn_seed()
    chance = random.Random(seed)
    begun = time.monotonic()
    own = tmp_path / "worker.db"
    share = FACTS // (KILLS + 1) // BATCH
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        posting = Posting(asker)
        arguments = ("-m", "tests.processes.worker", daemon.follow, daemon.url, str(own))
        for kill in range(KILLS):
            with Recorder(*arguments, cwd=tmp_path) as worker:
                before = chance.randint(0, share)
                for _ in range(before):
                    posting.post()
                if before and kill != 1:
                    wanted = chance.randint(1, before * BATCH)
                    worker.wait_until(lambda: len(worker.facts) >= wanted, f"{wanted} facts")  # noqa: B023
                for _ in range(share - before):
                    posting.post()
                worker.kill()
                assert worker.trouble == [], f"seed {seed}"
        with Recorder(*arguments, cwd=tmp_path) as worker:
            while len(posting.known) < FACTS:
                posting.post()
            last = {(one.stream, one.writer): one.token for one in posting.known}
            looked = 0

            def is_all_there() -> bool:
                nonlocal looked
                for fact in worker.facts[looked:]:
                    if last.get((fact.stream, fact.writer)) == fact.token:
                        del last[fact.stream, fact.writer]
                looked = len(worker.facts)
                return not last

            worker.wait_until(is_all_there, f"the last fact of every writer (seed {seed})")
    with closing(sqlite3.connect(own)) as database:
        effects = list(database.execute("SELECT stream, writer, token, rows FROM effects ORDER BY rowid"))
    found = [(stream, writer, token, ids_of(rows)[0]) for stream, writer, token, rows in effects]
    assert len(found) == len(set(found)), f"seed {seed}: some facts had two effects"
    assert sorted(found) == sorted(posting.known), f"seed {seed}"
    tokens: dict[tuple[str, str], int] = {}
    for stream, writer, token, _ in found:
        assert token > tokens.get((stream, writer), 0), f"seed {seed}: out of order"
        tokens[stream, writer] = token
    report(f"exactly once: {KILLS} kills, {FACTS} facts, {time.monotonic() - begun:.1f} s")
