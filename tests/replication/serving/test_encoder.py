"""Facts that are encoded together are encoded as each alone."""

import random

import pytest

from synrepl.replication.serving.encoder import Encoder
from synrepl.replication.strategies import serving
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.wire.codec import MAX_LENGTH, codec_of
from synrepl.wire.dialect import CURRENT, LEGACY, NEWEST, Dialect
from synrepl.wire.grammar import BOTH, SERVER

STATE = b'["state",["!r","m.room.topic","","$e"]]'
LONG = b'["state",["!r","m.room.topic","","$%b"]]' % (b"e" * MAX_LENGTH)


def fact(token: int, stream: str, writer: str, *rows: bytes) -> Fact:
    return Fact(token, 1, stream, writer, token - 1, token, b"[%b]" % b",".join(rows), 0, "")


def encoder(dialect: Dialect, withheld: list[int]) -> Encoder:
    codec = codec_of(dialect, ours=SERVER, theirs=BOTH & ~SERVER)
    return Encoder(
        StreamTable.default(),
        codec,
        serving(dialect),
        withheld=lambda fact, why: withheld.append(fact.token),
        writes=[Writer("events", "a"), Writer("events", "b"), Writer("push_rules", "a")]
        if dialect is NEWEST
        else None,
    )


@pytest.mark.parametrize("dialect", [LEGACY, CURRENT, NEWEST])
@pytest.mark.parametrize("seed", range(10))
def test_together_they_are_what_they_are_alone(dialect: Dialect, seed: int) -> None:
    """Facts without rows, with several, and with rows that are too long for a line, of several writers."""
    rng = random.Random(seed)
    facts: list[Fact] = []
    while len(facts) < 60:
        stream, writer = rng.choice(["events", "push_rules"]), rng.choice(["a", "b"])
        row = STATE if stream == "events" else b'["@a:hs"]'
        for _ in range(rng.randrange(1, 6)):
            rows = rng.choices([[row], [row] * 3, [], [LONG], [LONG, row]], [20, 5, 1, 1, 1])[0]
            facts.append(fact(len(facts) + 1, stream, writer, *rows))
    assert any(one.rows == NO_ROWS for one in facts)
    alone: list[int] = []
    together: list[int] = []

    expected = b"".join(encoder(dialect, alone).lines([one]) for one in facts)

    assert expected == encoder(dialect, together).lines(facts)
    assert alone == together


def test_the_longest_line_is_sent() -> None:
    """And a row that is a byte longer is not."""
    prefix = b"RDATA events a 12345 "
    fits = STATE.replace(b"$e", b"$" + b"e" * (MAX_LENGTH - len(prefix) - len(STATE) + 1))
    facts = [fact(12345, "events", "a", fits), fact(12346, "events", "a", fits.replace(b"$e", b"$ee"))]

    lines = encoder(NEWEST, []).lines(facts).splitlines()

    assert [MAX_LENGTH, b"POSITION events a 12346 12346"] == [len(lines[0]), lines[1]]
