"""`synrepl tail --state` through SIGKILL at any moment: it may repeat, it never leaves anything out."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes.loading import (
    PATIENCE_SECONDS,
    Asker,
    Known,
    Recorder,
    drawn_seed,
    made_rows,
    report,
    size,
)
from tests.service.processes import Daemon

KILLS = size(8, 50)
FACTS = size(20_000, 100_000)
BATCH = 10
WRITTEN = (("events", "ep1"), ("events", "ep2"), ("receipts", "master"), ("to_device", "master"))


class Posting:
    """Appends facts of several streams and writers, and knows what was acknowledged."""

    def __init__(self, asker: Asker) -> None:
        self.known: list[Known] = []
        self._asker = asker

    def post(self) -> None:
        """One batch, of the stream and writer whose turn it is."""
        first = len(self.known) + 1
        stream, writer = WRITTEN[first // BATCH % len(WRITTEN)]
        numbers = range(first, first + BATCH)
        answer = self._asker.post(stream, [made_rows(stream, one) for one in numbers], writer=writer)
        tokens = answer["tokens"]
        self.known += [Known(stream, writer, t, n) for t, n in zip(tokens, numbers, strict=True)]


def claimed(state: Path, known: Sequence[Known], dialect: str) -> list[Known]:
    """The facts that the state file says were had."""
    if not state.exists():
        return []
    positions = json.loads(state.read_text())["positions"]
    found = []
    for fact in known:
        writers = positions.get(fact.stream, {})
        # Old workers know of no writers: whatever the name, the position is that of the stream.
        at = max(writers.values(), default=0) if dialect == "legacy" else writers.get(fact.writer, 0)
        if fact.token <= at:
            found.append(fact)
    return found


@pytest.mark.parametrize("dialect", ["current", "legacy"])
@pytest.mark.parametrize("kind", ["everything", "named"])
def test_a_killed_tail_with_a_state_leaves_nothing_out(tmp_path: Path, dialect: str, kind: str) -> None:
    """Who feeds a program from `synrepl tail` relies on it: a state ahead of the output loses facts."""
    kills = KILLS if kind == "everything" else max(4, KILLS // 4)
    facts = FACTS if kind == "everything" else FACTS // 2
    seed = drawn_seed()
    chance = random.Random(seed)
    begun = time.monotonic()
    state = tmp_path / "state"
    printed: list[Known] = []
    claims = states = 0
    share = facts // (kills + 1) // BATCH
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        posting = Posting(asker)
        named = ("events", "receipts", "to_device") if kind == "named" else ()
        arguments = (
            *("-m", "synrepl", "tail", daemon.follow, "--http", daemon.url, "--dialect", dialect),
            *("--from", "earliest", "--state", str(state)),
            *(part for stream in named for part in ("--stream", stream)),
        )
        for kill in range(kills):
            with Recorder(*arguments, cwd=tmp_path) as tail:
                before = chance.randint(0, share // 2)
                for _ in range(before):
                    posting.post()
                if chance.random() < 0.9:
                    tail.wait_for_line('"connected"')
                    # What it does not claim to have must come, whatever else does.
                    wanted = chance.randint(0, min(share * BATCH, len(posting.known) - claims))
                    if chance.random() < 0.5:
                        tail.wait_until(lambda: len(tail.facts) >= wanted, f"{wanted} facts")  # noqa: B023
                meanwhile = chance.randint((share - before) // 2, share - before)
                if is_slow := chance.random() < 0.5:
                    tail.hold(True)
                for _ in range(meanwhile):
                    posting.post()
                if is_slow:
                    # Held up by the full pipe for so long that its next save is due; a little room, and it
                    # has news to say, has to wait again, and dies between what it claims and what it says.
                    had_before = len(tail.facts)
                    tail.hold(False)
                    tail.wait_until(lambda: len(tail.facts) > had_before, "more facts")  # noqa: B023
                    tail.hold(True)
                    for _ in range(5):
                        posting.post()
                if kill == kills - 1 and not states:
                    # No kill so far came after a save; one must, or the test would say nothing.
                    tail.hold(False)
                    until = time.monotonic() + PATIENCE_SECONDS
                    while not claimed(state, posting.known, dialect):
                        assert time.monotonic() < until, "nothing is ever saved"
                        posting.post()
                tail.kill()
                assert tail.trouble == [], f"seed {seed}"
                printed += tail.facts
            had = {(fact.stream, fact.number) for fact in printed}
            had_all = claimed(state, posting.known, dialect)
            claims = len(had_all)
            lost = [one for one in had_all if (one.stream, one.number) not in had]
            states += bool(claims)
            assert lost == [], f"seed {seed}, kill {kill}: {len(lost)} claimed, not printed"
            for _ in range(share - before - meanwhile):
                posting.post()
        with Recorder(*arguments, cwd=tmp_path) as tail:
            while len(posting.known) < facts:
                posting.post()
            missing = {one.number for one in posting.known} - {one.number for one in printed}
            looked = 0

            def is_all_there() -> bool:
                nonlocal looked
                missing.difference_update(fact.number for fact in tail.facts[looked:])
                looked = len(tail.facts)
                return not missing

            try:
                tail.wait_until(is_all_there, "every fact")
            except AssertionError:
                streams = sorted({one.stream for one in posting.known if one.number in missing})
                kept = state.read_text() if state.exists() else "none"
                raise AssertionError(
                    f"seed {seed}: {len(missing)} facts of {streams} never came; state: {kept[:600]}"
                ) from None
            assert tail.terminate() == 0
            printed += tail.facts
    assert states, "no kill came after a save: the test says nothing"
    tokens = {one.number: (one.stream, one.token) for one in posting.known}
    assert all(tokens[fact.number] == (fact.stream, fact.token) for fact in printed)
    report(
        f"tail {dialect} {kind}: {kills} kills ({states} with a state), {facts} facts,"
        f" {len(printed) - facts} repeated, {time.monotonic() - begun:.1f} s"
    )
