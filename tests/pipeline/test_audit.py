"""Audits: each way in which an archive can be damaged is named, and where."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.row_files import read_files, sha256_of, write_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit import audit as auditing
from synrepl.pipeline.audit import explanation
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.audit.audit_findings import CODES, AuditFinding, AuditResult
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import Store
from synrepl.streams.digest import EMPTY, chain
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition
from tests.pipeline.archives import BEGAN_MS, LOG, Given, archive, chained, correct_checksums, write_facts

HISTORY = "history-of-tests"

Told = list[tuple[str, str, str, int | None, int | None, int | None, int | None]]


def facts_of(count: int = 40) -> list[Fact]:
    """Facts of two streams with two writers each, some with several rows, some with none."""
    given: list[Given] = []
    for number in range(count // 4):
        given += [
            ("push_rules", "w1", [[f"@a{number}:b"]]),
            ("receipts", "w1", [["!r:b", "m.read", "@a:b", f"$e{number}", None, {}]] * (number % 3)),
            ("push_rules", "w2", [[f"@b{number}:b"], [f"@c{number}:b"]]),
            ("receipts", "w2", [["!r:b", "m.read", "@c:b", f"$e{number}", None, {"ä": 1.5}]]),
        ]
    return chained(given)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An archive of 40 facts in four batches; each has two files."""
    archive(str(tmp_path), facts_of(), batch_facts=10)
    return tmp_path


def audited(runner: Runner, place: Path, **more: Any) -> AuditResult:
    """What an audit says; whatever it says must make sense."""
    told = audit(runner, Store(str(place)), **more)
    assert all(finding.what in CODES and finding.sentence for finding in told.findings)
    return told


@pytest.mark.parametrize("batch_facts", [1, 2, 100])
@pytest.mark.parametrize("deep", [False, True])
def test_facts_that_the_log_has_lost_are_no_fault_of_the_archive(
    runner: Runner, tmp_path: Path, batch_facts: int, deep: bool
) -> None:
    """It has all that the log has, which says itself what it could not get, and where. It is said once."""
    chains = [(0, 0, []), (0, 2, [[1]]), (5, 5, []), (5, 6, [[1]]), (4, 4, [[1]]), (9, 9, []), (9, 9, [[1]])]
    archive(str(tmp_path), told_by("push_rules", "w", chains), batch_facts=batch_facts)

    told = audited(runner, tmp_path, deep=deep)

    assert told.is_clean, told.findings
    assert [("lost-fact", "info", "w", 3, 5, 3), ("lost-fact", "info", "w", 7, 9, 6)] == [
        (one.what, one.severity, one.writer, one.first_token, one.last_token, one.first_serial)
        for one in told.findings
    ]
    assert "w wrote facts after token 2 up to 5 which the log could not get" == told.findings[0].sentence


def test_a_hole_that_no_fact_tells_of_is_missing(runner: Runner, tmp_path: Path) -> None:
    """Late facts tell of none, though their tokens look alike; nor does an empty fact that only certifies."""
    chains = [(0, 2, [[1]]), (5, 6, [[1]]), (5, 5, [[1]]), (6, 8, []), (9, 10, [[1]])]
    archive(str(tmp_path), told_by("push_rules", "w", chains))

    told = audited(runner, tmp_path)

    assert [("broken-chain", 2), ("broken-chain", 5)] == [
        (one.what, one.first_serial) for one in told.findings
    ]


def told_by(stream: str, writer: str, chains: Sequence[tuple[int, int, list[Any]]]) -> list[Fact]:
    """Facts of one writer: prev_token, token, rows."""
    facts: list[Fact] = []
    digest = EMPTY
    for serial, (prev_token, token, rows) in enumerate(chains, 1):
        made: dict[str, Any] = {
            "serial": serial,
            "epoch": 1,
            "stream": stream,
            "writer": writer,
            "prev_token": prev_token,
            "token": token,
            "committed_at_ms": BEGAN_MS + serial,
            "rows": json.dumps(rows, separators=(",", ":")).encode(),
        }
        digest = chain(digest, **made)
        facts.append(Fact(**made, digest=digest))
    return facts


def test_facts_that_no_primary_may_have_written_are_named(runner: Runner, tmp_path: Path) -> None:
    """One daemon is primary in an epoch. The archive itself is right, and its audit ends well."""
    promise = [["acks", ["1"], []]]
    given: list[Given] = [
        ("promises", "master", promise),
        ("promises", "persister1", promise),
        ("push_rules", "persister1", [["@a:b"]]),
    ]
    archive(str(tmp_path), chained(given))

    told = audited(runner, tmp_path)

    assert [("unproven-fact", "master", 1), ("unproven-fact", "persister1", 2)] == [
        (one.what, one.writer, one.first_serial) for one in told.findings
    ]
    assert told.is_clean


def named(findings: Sequence[AuditFinding]) -> Told:
    """What, stream, writer, tokens and serials."""
    return [
        (one.what, one.stream, one.writer, one.first_token, one.last_token, one.first_serial, one.last_serial)
        for one in findings
    ]


def file_of(place: Path, stream: str, batch: int) -> str:
    """The path of the file of this stream and batch."""
    files = ArchiveTable(Store(str(place))).files.to_pylist()
    paths: list[str] = [file["path"] for file in files if file["stream"] == stream]
    return paths[batch]


def rewritten(place: Path, path: str, change: Callable[[Any], Any], *, fixed: bool = True) -> str:
    """That file with other rows; `fixed` makes its name and the log agree on its bytes. Gives the path."""
    table = pq.read_table(place / path, partitioning=None)
    pq.write_table(change(table).cast(table.schema), place / path)
    data = (place / path).read_bytes()
    return replaced(place, path, data) if fixed else path


def replaced(place: Path, path: str, data: bytes) -> str:
    """These bytes as that file, under the name that they should have, as the log says. Gives the path."""
    name = path.replace(sha256_of(path), sha256(data).hexdigest())
    (place / path).unlink()
    (place / name).write_bytes(data)
    for commit in (place / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if action.get("add", {}).get("path") == path:
                action["add"] |= {"path": name, "size": len(data)}
        commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    correct_checksums(place)
    return name


def without(serial: int) -> Callable[[Any], Any]:
    """All rows but those of this fact."""
    return lambda table: table.filter(pc.not_equal(table["serial"], serial))


@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_archive_is_clean(runner: Runner, place: Path, deep: bool) -> None:
    """Nobody is woken for nothing."""
    left = place / "stream=push_rules/date=2026-11-21/left.parquet"
    left.write_bytes(b"half")
    os.utime(left, (BEGAN_MS / 1000 - 9e6, BEGAN_MS / 1000 - 9e6))

    told = audited(runner, place, deep=deep)

    assert ["unnamed-file"] == [one.what for one in told.findings]
    assert told.is_clean
    assert (3, 8, 40, 53, 1, 40) == (
        told.version,
        told.files,
        told.facts,
        told.rows,
        told.first_serial,
        told.last_serial,
    )

    # Files that were merged stay for a while; that is no news.
    assert 8 == optimize(runner, Store(str(place))).merged
    told = audited(runner, place, deep=deep)
    assert ["unnamed-file"] == [one.what for one in told.findings]
    assert (2, 40) == (told.files, told.facts)
    assert (8, 40) == tuple(getattr(audited(runner, place, as_of="3"), name) for name in ("files", "facts"))


def test_late_facts_break_no_chain(runner: Runner, tmp_path: Path) -> None:
    """A fact that comes late says nothing about those before it. If it is lost, only its serial tells."""
    facts = facts_of(8)
    made: dict[str, Any] = {"serial": 9, "epoch": 1, "stream": "receipts", "writer": "w1", "prev_token": 2}
    row: list[Any] = ["!r:b", "m.read", "@a:b", "$late", None, {}]
    made |= {
        "token": 2,
        "committed_at_ms": facts[-1].committed_at_ms,
        "rows": json.dumps([row], separators=(",", ":")).encode(),
    }
    facts.append(Fact(**made, digest=chain(facts[-1].digest, **made)))
    more: list[Given] = [("receipts", "w1", [["!r:b", "m.read", "@a:b", "$e", None, {}]])]
    (last,) = chained(more, after=facts)
    archive(str(tmp_path), [*facts, fixed(last, facts[-1], prev_token=3)], batch_facts=5)

    assert [] == audited(runner, tmp_path, deep=True).findings

    path = rewritten(tmp_path, file_of(tmp_path, "receipts", 1), without(9))
    (missing,) = audited(runner, tmp_path).findings
    assert [("missing-row", "receipts", "", None, None, 9, 9)] == named([missing])
    assert ("serial 9 is missing", path) == (missing.sentence, missing.file)


def test_what_was_trimmed_or_lost_is_no_damage(runner: Runner, tmp_path: Path) -> None:
    """A log that had been trimmed has holes up to there; where history was lost, writers go back."""
    store, facts = Store(str(tmp_path)), facts_of()
    # The last of w2 in receipts before serial 20 is trimmed away: no clock tells of it.
    left = [fact for fact in facts[:20] if fact.serial in (1, 2, 3, 19)]
    epoch_start = EpochStart(2, 30, facts[29].digest, 0, "lost", "push_rules", 10)
    after = [fixed(facts[30], facts[29], epoch=2, prev_token=10, token=11)]
    place = LogPosition(1, 20, facts[19].digest)
    job = BatchCommitter(store, LOG)
    for some, upto in [(left, place), (facts[20:30], None), (after, None)]:
        job.commit(write_facts(store, some), epoch_starts=[epoch_start], now_ms=0, compacted_upto=upto)

    assert [] == audited(runner, tmp_path).findings
    assert [] == audited(runner, tmp_path, deep=True).findings


def test_deep_audit_finds_a_writer_that_goes_back_in_a_trimmed_range(runner: Runner, tmp_path: Path) -> None:
    """Trimming removes facts, so that digests prove little there; but it never makes a writer go back."""
    store, facts = Store(str(tmp_path)), facts_of()
    back = fixed(facts[18], facts[17], prev_token=1)
    left = [*(fact for fact in facts if fact.serial in (1, 2, 3)), back]
    upto = LogPosition(1, 20, facts[19].digest)
    BatchCommitter(store, LOG).commit(write_facts(store, left), now_ms=0, compacted_upto=upto)

    told = named(audited(runner, tmp_path, deep=True).findings)

    assert [("broken-chain", "push_rules", "w2", 1, 10, 19, 19)] == told


def trimmed_archive(place: Path, *, hole: int, across: bool) -> Store:
    """The archive of a log trimmed to serial 20, of one writer, with a hole in its tokens at a serial.

    Its files are merged; `across` the end of the trimmed part too, as releases up to 26.11.1 did.
    """
    store, facts = Store(str(place)), chained(("push_rules", "m", [[f"@{n}:b"]]) for n in range(60))
    for at in range(hole - 1, 60):
        one = facts[at]
        facts[at] = fixed(one, facts[at - 1], prev_token=one.prev_token + 7, token=one.token + 7)
    job, upto = BatchCommitter(store, LOG), LogPosition(1, 20, facts[19].digest)
    job.commit(write_facts(store, facts[1:20:2]), now_ms=0, compacted_upto=upto)
    for first in (20, 40):
        job.commit(write_facts(store, facts[first : first + 20]), now_ms=0)
    if across:
        table = ArchiveTable(store)
        files = table.files
        rows = read_files(store, files["path"].to_pylist(), ROWS)
        table.replace(files, list(write_files(store, rows)), now_ms=0)
    return store


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("hole", [31, 41])
def test_merged_files_hide_no_hole_behind_the_trimmed_part(
    runner: Runner, tmp_path: Path, hole: int, across: bool
) -> None:
    """A span that began in the trimmed part counted as trimmed, up to its end."""
    store = trimmed_archive(tmp_path, hole=hole, across=across)
    optimize(runner, store)

    for deep in (False, True):
        (broken,) = (one for one in audited(runner, tmp_path, deep=deep).findings if one.severity == "error")
        assert ("broken-chain", hole) == (broken.what, broken.first_serial)


@pytest.mark.parametrize("across", [False, True])
def test_a_trimmed_archive_with_merged_files_is_clean(runner: Runner, tmp_path: Path, across: bool) -> None:
    """Whether they are merged across the end of the trimmed part or not; a later merge keeps that apart."""
    store = trimmed_archive(tmp_path, hole=61, across=across)
    optimize(runner, store)

    assert ([1] if across else [2, 21]) == [
        max(1, first - across) for first in ArchiveTable(store).files["first_serial"].to_pylist()
    ]
    for deep in (False, True):
        assert audited(runner, tmp_path, deep=deep).is_clean


@pytest.mark.parametrize("serial", [6, 30])
def test_rows_that_a_merged_trimmed_archive_lacks_are_missed(
    runner: Runner, tmp_path: Path, serial: int
) -> None:
    """After the trimmed part all serials are there; up to its end, the batches count the facts."""
    trimmed_archive(tmp_path, hole=61, across=True)
    rewritten(tmp_path, file_of(tmp_path, "push_rules", 0), without(serial))

    found = {(one.what, one.first_serial) for one in audited(runner, tmp_path).findings}

    assert (("table", 2) if serial <= 20 else ("missing-row", serial)) in found


def test_files_of_the_trimmed_part_that_are_gone_are_missed(runner: Runner, tmp_path: Path) -> None:
    """Nothing but the number of facts tells of them."""
    table = ArchiveTable(trimmed_archive(tmp_path, hole=61, across=False))
    table.replace(table.files.slice(0, 1), [], now_ms=0)

    (lacking,) = (one for one in audited(runner, tmp_path, deep=True).findings if one.severity == "error")

    assert "the files have 40 facts, but the log of the table counts 50" == lacking.sentence


def fixed(fact: Fact, before: Fact, **changed: Any) -> Fact:
    """The same with other fields, and the digest that it should have."""
    names = "serial", "epoch", "stream", "writer", "prev_token", "token", "rows", "committed_at_ms"
    made = {name: getattr(fact, name) for name in names} | changed
    return Fact(**made, digest=chain(before.digest, **made))


@pytest.mark.parametrize("is_fixed", [True, False])
def test_a_removed_row_is_named(runner: Runner, place: Path, is_fixed: bool) -> None:
    """Also where whoever removed it made the manifest agree: then the rows alone tell."""
    # Serial 21 is the first of its writer in batch 2, 29 the last but one: tokens 11 and 15.
    path = rewritten(place, file_of(place, "push_rules", 2), without(25), fixed=is_fixed)

    told = audited(runner, place)

    expected: Told = [("missing-row", "push_rules", "w1", 12, 13, 25, 25)]
    if not is_fixed:
        whole = [
            ("changed-file", "push_rules", w, *t, 21, 29) for w, t in {"w1": (11, 15), "w2": (12, 14)}.items()
        ]
        expected = [*whole, *expected]
    assert expected == named(told.findings)
    assert {path} == {one.file for one in told.findings}
    assert not told.is_clean


def test_the_last_row_of_a_writer_is_missed_as_well(runner: Runner, place: Path) -> None:
    """What no later fact tells of, the clock of the batch does."""
    rewritten(place, file_of(place, "receipts", 3), without(40))

    assert [("missing-row", "receipts", "w2", 19, 20, 40, 40)] == named(audited(runner, place).findings)


def test_a_part_of_a_fact_is_missed(runner: Runner, place: Path) -> None:
    """A fact is its rows, all of them."""
    path = file_of(place, "push_rules", 0)
    rewritten(place, path, lambda t: drop(t, 3, 1))
    rewritten(place, file_of(place, "push_rules", 1), lambda t: drop(t, 15, 0))

    told = named(audited(runner, place).findings)

    assert ("changed-row", "push_rules", "w2", 2, 2, 3, 3) in told
    assert ("missing-row", "push_rules", "w2", 8, 8, 15, 15) in told
    assert 2 == len({one[-1] for one in told})


def drop(table: Any, serial: int, seq: int) -> Any:
    """All rows but one."""
    is_it = pc.and_(pc.equal(table["serial"], serial), pc.equal(table["seq"], seq))
    return table.filter(pc.invert(is_it))


def test_a_doubled_and_a_misplaced_row_are_named(runner: Runner, place: Path) -> None:
    """Who counts rows counts each once; who reads in order reads in order."""
    path = file_of(place, "push_rules", 1)
    rewritten(place, path, lambda t: pa.concat_tables([t.slice(0, 1), t]))
    rewritten(place, file_of(place, "receipts", 3), lambda t: t.take([1, 0, *range(2, len(t))]))

    told = named(audited(runner, place).findings)

    assert [
        ("doubled-row", "push_rules", "w2", 6, 6, 11, 11),
        ("out-of-order", "receipts", "w2", 16, 16, 32, 32),
    ] == told


@pytest.mark.parametrize("serials", [11, explanation.PIECE])
def test_a_changed_row_is_named_by_a_deep_audit(
    runner: Runner, place: Path, monkeypatch: pytest.MonkeyPatch, serials: int
) -> None:
    """Whoever can change files and manifests cannot change what the digests stand for."""
    # The third piece of eleven serials begins with serial 23.
    monkeypatch.setattr(explanation, "PIECE", serials)
    assert [] == audited(runner, place, deep=True).findings

    def change(table: Any) -> Any:
        rows = pc.replace_substring(table["row"], "@c5:b", "@x5:b")
        return table.set_column(table.schema.get_field_index("row"), "row", rows)

    path = rewritten(place, file_of(place, "push_rules", 2), change)

    assert [] == audited(runner, place).findings
    told = audited(runner, place, deep=True)

    assert [("changed-row", "push_rules", "w2", 12, 12, 23, 23)] == named(told.findings)
    assert path == told.findings[0].file


def test_damaged_files_are_named(runner: Runner, place: Path) -> None:
    """A flipped byte, two files that changed places, one that is gone: each with whose facts it had."""
    flipped, gone = file_of(place, "push_rules", 0), file_of(place, "receipts", 1)
    one, other = file_of(place, "push_rules", 3), file_of(place, "receipts", 3)
    data = bytearray((place / flipped).read_bytes())
    data[-5] ^= 255
    (place / flipped).write_bytes(data)
    (place / gone).unlink()
    (place / one).rename(place / "elsewhere")
    (place / other).rename(place / one)
    (place / "elsewhere").rename(place / other)

    told = audited(runner, place)

    assert [
        ("changed-file", "push_rules", "w1", 1, 5, 1, 9),
        ("changed-file", "push_rules", "w2", 1, 4, 1, 9),
        ("missing-file", "receipts", "w1", 6, 9, 12, 20),
        ("missing-file", "receipts", "w2", 5, 10, 12, 20),
        ("changed-file", "push_rules", "w1", 16, 19, 31, 39),
        ("changed-file", "push_rules", "w2", 15, 20, 31, 39),
        ("changed-file", "receipts", "w1", 16, 19, 32, 40),
        ("changed-file", "receipts", "w2", 15, 20, 32, 40),
    ] == named(told.findings)
    assert f"{one} has the bytes of {other}" in [finding.sentence for finding in told.findings]


def test_a_damaged_file_is_described(runner: Runner, place: Path) -> None:
    """A shorter one by its sizes, one with a flipped bit by its checksum."""
    short, flipped = file_of(place, "push_rules", 0), file_of(place, "receipts", 1)
    data = (place / short).read_bytes()
    (place / short).write_bytes(data[:-100])
    changed = bytearray((place / flipped).read_bytes())
    changed[-5] ^= 1
    (place / flipped).write_bytes(changed)

    sentences = {finding.sentence for finding in audited(runner, place).findings}

    assert f"{short} has {len(data) - 100} bytes, and not {len(data)} as in the log of the table" in sentences
    checksum = sha256(changed).hexdigest()
    assert f"{flipped} has bytes with checksum {checksum}, not the one in its name" in sentences


def test_a_log_that_is_wrong_is_named(runner: Runner, place: Path) -> None:
    """Files that it no longer has, counts that its files do not have, an end that no fact has."""
    folder = place / "_delta_log"
    (gone, short, last) = (f"{number:020}.json" for number in (1, 2, 3))
    lines = (folder / gone).read_text().splitlines()
    (folder / gone).write_text("".join(f"{line}\n" for line in lines if '"add"' not in line))
    text = (folder / short).read_text()
    (folder / short).write_text(text.replace('\\"numRecords\\": 6', '\\"numRecords\\": 7', 1))
    text = (folder / last).read_text()
    digest = facts_of()[-1].digest
    (folder / last).write_text(text.replace(digest, "f" * 64).replace('"w2":20', '"w2":21', 1))
    correct_checksums(place)

    told = audited(runner, place)

    assert [("gap", 11, 20), ("table", 22, 30), ("table", 40, 40), ("table", 40, 40)] == sorted(
        (one.what, one.first_serial, one.last_serial) for one in told.findings if one.severity == "error"
    )
    assert not told.is_clean


@contextmanager
def daemon(
    facts: Sequence[Fact], *, history: str = HISTORY, trimmed_upto: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """A daemon that has these facts, trimmed up to `begin`: its address, and what it is asked."""
    digests: Mapping[int, str] = {fact.serial: fact.digest for fact in facts if fact.serial > trimmed_upto}
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            wanted = parse_qs(urlsplit(self.path).query)["serials"][0].split(",")
            found = {serial: digests.get(int(serial)) for serial in wanted}
            body = {"epoch": 1, "serial": facts[-1].serial, "history": history, "digests": found}
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def changed(facts: Sequence[Fact], serial: int) -> list[Fact]:
    """The same facts, but that one; so all digests from there on are others."""
    made = list(facts[: serial - 1])
    for fact in facts[serial - 1 :]:
        epoch = 2 if fact.serial == serial else fact.epoch
        made.append(fixed(fact, made[-1], epoch=epoch))
    return made


def test_a_daemon_that_has_the_same_is_clean(runner: Runner, place: Path) -> None:
    """Also one that has more, and one that was trimmed."""
    facts = facts_of(48)
    with daemon(facts) as (url, asked):
        assert [] == audited(runner, place, url=url).findings
        assert 2 == len(asked)
    with daemon(facts, trimmed_upto=15) as (url, _):
        told = audited(runner, place, url=url)
        assert [("daemon-trimmed", "", "", None, None, 1, 10)] == named(told.findings)
        assert told.is_clean


def test_digests_that_a_daemon_has_trimmed_are_not_collected(
    runner: Runner, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be those of almost the whole archive, in the memory of the driver."""
    collected: list[tuple[int, int]] = []
    real = auditing._digests

    def digests(driver: Any, compared: Any, first: int, last: int) -> Any:
        collected.append((first, last))
        return real(driver, compared, first, last)

    monkeypatch.setattr(auditing, "_digests", digests)
    with daemon(changed(facts_of(), 35), trimmed_upto=30) as (url, _):
        told = audited(runner, place, url=url)

    assert ("differs-from-daemon", 35) == (told.findings[0].what, told.findings[0].first_serial)
    assert [(31, 40)] == collected


def test_a_daemon_that_differs_is_found_out(runner: Runner, place: Path) -> None:
    """By the first fact that differs, without moving a row; a daemon that lacks facts, by which."""
    facts = facts_of()
    with daemon(changed(facts, 23)) as (url, _):
        told = audited(runner, place, url=url)
        assert [("differs-from-daemon", "push_rules", "w2", 12, 12, 23, 40)] == named(told.findings)
    with daemon(changed(facts, 7)[:36]) as (url, _):
        told = audited(runner, place, url=url)
        assert [
            ("differs-from-daemon", "push_rules", "w2", 4, 4, 7, 36),
            ("missing-in-daemon", "push_rules", "w1", 19, 19, 37, 37),
            ("missing-in-daemon", "receipts", "w1", 19, 19, 38, 38),
            ("missing-in-daemon", "push_rules", "w2", 20, 20, 39, 39),
            ("missing-in-daemon", "receipts", "w2", 20, 20, 40, 40),
        ] == named(told.findings)
    with daemon(facts, history="another") as (url, _):
        assert [("other-history", "", "", None, None, None, None)] == named(
            audited(runner, place, url=url).findings
        )
