"""Recorded sessions, read: every row of every recording is accounted for."""

import re
from collections import Counter
from pathlib import Path

import pytest

from synrepl.cli.recordings import RecordedFacts, read
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TABLE = StreamTable.default()
DIALECTS = {"legacy": LEGACY, "middle": MIDDLE, "current": CURRENT, "redis": CURRENT}


def grepped(data: bytes) -> Counter[str]:
    """Rows by stream, found the simple way: those of the first connection that has any."""
    found = re.findall(rb"^\s*[\d.]+ (c\d+ )?< RDATA (\S+) ", data, re.MULTILINE)
    found += [(b"", stream) for stream in re.findall(rb"\tRDATA (\S+) ", data)]
    return Counter(stream.decode() for connection, stream in found if connection == found[0][0])


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/*.txt")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_row_of_a_recording_is_read_or_listed(path: Path) -> None:
    """None is dropped in silence."""
    data = path.read_bytes()

    recording = read(data, TABLE)

    rows = Counter[str]()
    for fact in recording.facts:
        rows[fact.stream] += len(fact.rows)
    assert rows + Counter(bad.stream for bad in recording.bad) == grepped(data)
    if rows:
        assert recording.dialect == DIALECTS[path.parent.name]


@pytest.mark.parametrize("name", ["legacy", "current"])
def test_a_whole_session_has_no_bad_row(name: str) -> None:
    """Real masters sent them."""
    recording = read((GOLDEN / name / "session-all.txt").read_bytes(), TABLE)

    assert recording.bad == []
    assert max(len(fact.rows) for fact in recording.facts) > 1


def test_rows_of_one_fact_stay_together() -> None:
    """Also when another stream's row comes between them."""
    data = (
        b'RDATA typing master batch ["!a:b",[]]\n'
        b'RDATA push_rules master 1 ["@a:b"]\n'
        b'RDATA typing master 5 ["!c:d",[]]\n'
    )

    recording = read(data, TABLE)

    assert [(fact.stream, fact.rows) for fact in recording.facts] == [
        ("push_rules", [b'["@a:b"]']),
        ("typing", [b'["!a:b",[]]', b'["!c:d",[]]']),
    ]


def test_only_what_came_from_the_master_counts() -> None:
    """On one connection of a proxy's recording, too."""
    data = (
        b"0.001 c0 * proxy ready\n"
        b"0.002 c2 < POSITION typing 1\n"
        b'0.003 c2 > RDATA push_rules 1 ["@no:b"]\n'
        b'0.004 c2 < RDATA push_rules 1 ["@yes:b"]\n'
        b'0.005 c3 < RDATA push_rules 1 ["@other:b"]\n'
    )

    assert [fact.rows for fact in read(data, TABLE).facts] == [[b'["@yes:b"]']]
    assert [fact.rows for fact in read(data, TABLE, connection="c3").facts] == [[b'["@other:b"]']]
    assert [0.004] == [fact.at for fact in read(data, TABLE).facts]


def test_bad_rows_are_listed_by_line() -> None:
    """So that one can look at them; the others are taken."""
    data = (
        b'RDATA push_rules master 1 ["@a:b"]\n'
        b"RDATA push_rules master 2 {}\n"
        b'RDATA unheard_of master 3 ["x"]\n'
        b"RDATA push_rules\n"
        b'RDATA push_rules master batch ["@begun:b"]\n'
    )

    recording = read(data, TABLE, dialect=CURRENT)

    assert [fact.rows for fact in recording.facts] == [[b'["@a:b"]']]
    assert [(bad.number, bad.stream) for bad in recording.bad] == [
        (2, "push_rules"),
        (3, "unheard_of"),
        (4, "push_rules"),
        (5, "push_rules"),
    ]


@pytest.mark.parametrize(
    ("line", "dialect"),
    [
        (b"POSITION events 1", LEGACY),
        (b"POSITION events master 1", MIDDLE),
        (b"POSITION events master 1 1", CURRENT),
        (b'RDATA push_rules 1 ["@a:b"]', LEGACY),
        (b'RDATA push_rules batch ["@a:b"]', LEGACY),
        (b'RDATA push_rules master 1 ["@a:b"]', CURRENT),
    ],
)
def test_the_dialect_is_found_from_the_lines(line: bytes, dialect: object) -> None:
    """Nobody notes it beside a recording."""
    assert read(line, TABLE).dialect == dialect


def test_facts_as_the_changelog_has_them_are_read() -> None:
    """What only one copy had is left in such a file, and posted again from it."""
    data = (
        b'{"serial":7,"epoch":1,"stream":"push_rules","writer":"worker1","prev_token":1,"token":2,'
        b'"rows":[["@a:b"],["@c:d"]],"committed_at_ms":1700000000000,"digest":"d"}\n'
        b'{"heartbeat":{"epoch":1}}\n'
        b'{"serial":8,"stream":"no_such","writer":"w","rows":[[1]]}\n'
    )

    found = read(data, StreamTable.default())

    assert found.facts == [
        RecordedFacts("push_rules", [b'["@a:b"]', b'["@c:d"]'], 1_700_000_000.0, "worker1", 1),
    ]
    assert [(bad.number, bad.why) for bad in found.bad] == [(3, "unknown stream")]


def test_a_time_that_cannot_be_is_a_bad_line() -> None:
    """It was no number that could be divided, and the reading of the whole file ended with a traceback."""
    fact = b'{"stream":"push_rules","writer":"w","rows":[["@a:b"]],"committed_at_ms":%b}\n'

    found = read(fact % (b"1" * 400) + fact % b"1000", StreamTable.default())

    assert [1.0] == [fact.at for fact in found.facts]
    assert [1] == [bad.number for bad in found.bad]
    assert "committed_at_ms" in found.bad[0].why


DECLARED = b'["nums",["k"],"kept",{"k":"str","i":"int"},[]]'


def test_a_changelog_is_read_by_its_own_declarations() -> None:
    """So a file that declares a stream can be replayed into a daemon that lacks it."""
    data = (
        b'{"stream":"declarations","writer":"synrepl","rows":[%b]}\n' % DECLARED
        + b'{"stream":"nums","writer":"w","rows":[["a",1],["b","2"]]}\n'
    )

    recording = read(data, TABLE)

    assert [("nums", [b'["a",1]'], 2)] == [(fact.stream, fact.rows, fact.number) for fact in recording.facts]
    assert ["nums"] == list(recording.declarations)
    assert [(2, "nums")] == [(bad.number, bad.stream) for bad in recording.bad]


def test_facts_of_a_daemons_own_state_are_counted_and_left_out() -> None:
    """A promise of another log would be believed at a promotion."""
    data = (
        b'{"stream":"promises","writer":"w","rows":[["acks",["1"],[["u","paris","a"]]]]}\n'
        b'{"stream":"atomic_appends","writer":"w","rows":[[1]]}\n'
        b'{"stream":"push_rules","writer":"w","rows":[["@a:h"]]}\n'
        b'{"stream":"declarations","writer":"w","rows":[["events",[],"kept",null,[]]]}\n'
    )

    recording = read(data, TABLE)

    assert ["push_rules"] == [fact.stream for fact in recording.facts]
    assert {"promises": 1, "atomic_appends": 1, "declarations": 1} == recording.own
    assert [(4, "declarations")] == [(bad.number, bad.stream) for bad in recording.bad]
