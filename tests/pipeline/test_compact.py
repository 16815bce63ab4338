"""Compaction: what a snapshot holds, by a fold of another make; and what if it is cut short."""

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.archive import BatchCommitter, LogIdentity
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.keys import KeyExtractor
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.snapshot import compact as compaction
from synrepl.pipeline.snapshot.compact import CompactResult, compact
from synrepl.pipeline.snapshot.snapshot import SNAPSHOT, read_snapshot, write_snapshot
from synrepl.pipeline.store import BadArchive, Store
from synrepl.streams.digest import EMPTY, chain
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition
from tests.pipeline.archives import BEGAN_MS, LOG, archive, chained, paths_of, restored, write_facts

PUSHER = "@a:b", "app"
HASH = "a" * 64

Rows = list[tuple[Any, ...]]


def extend(
    position: Path, facts: Sequence[Fact], *, epoch_starts: Sequence[EpochStart] = (), history: str = ""
) -> None:
    """One more batch, of these facts."""
    store = Store(str(position))
    job = BatchCommitter(store, LogIdentity(history or "history-of-tests", "localhost"))
    job.commit(write_facts(store, facts), epoch_starts=epoch_starts, now_ms=BEGAN_MS)


def pusher(key: str, *, deleted: bool = False) -> list[Any]:
    """A row of `pushers`."""
    return [*PUSHER, key, deleted]


def compacted(runner: Runner, folder: Path, *, full: bool = False, file_rows: int = 10_000) -> CompactResult:
    """The snapshot of the archive that is in here."""
    return compact(
        runner,
        Store(str(folder / "archive")),
        Store(str(folder / "snapshot")),
        full=full,
        file_rows=file_rows,
        made_at_ms=BEGAN_MS,
    )


def rows_of(folder: Path, columns: str = "serial, seq, key, row, last") -> Rows:
    """What the snapshot holds, in the order of its files."""
    snapshot = read_snapshot(Store(str(folder / "snapshot")))
    assert snapshot is not None
    rows: Rows = []
    for file in snapshot.files:
        found = duckdb.execute(f"select {columns} from '{folder}/snapshot/{file.path}'").fetchall()
        assert file.rows == len(found)
        rows += found
    return rows


def folded(folder: Path) -> Rows:
    """What the keys of the archive stand for, by its table alone: (serial, seq, key, row)."""
    files = [f"{folder}/archive/{path}" for path in paths_of(folder / "archive")]
    end = ArchiveTable(Store(str(folder / "archive"))).end
    voids = [
        f"stream = '{epoch_start.stream}' and epoch < {epoch_start.epoch} and token > {epoch_start.token}"
        for epoch_start in end.epoch_starts
        if epoch_start.stream
    ]
    return duckdb.execute(
        f"""with numbered as (
            select *, row_number() over (partition by stream, key order by serial desc, seq desc) as place
            from read_parquet({files}) where key is not null and not ({" or ".join(voids) or "false"})
        ) select serial, seq, key, row from numbered where place = 1
            and not (stream = 'pushers' and row like '%,true]')
            and not (stream = 'files' and row like '["delete"%')
            and not (stream = 'events' and row like '["state",%,null]]')
        order by serial, seq"""
    ).fetchall()


def whole(rows: Rows) -> Rows:
    """The rows that are the last of their key."""
    return [row[:4] for row in rows if row[4]]


def made_up(rng: random.Random, count: int) -> list[tuple[str, str, list[list[Any]]]]:
    """Facts to be: few keys, many deletions, several rows in many."""

    def one(stream: str) -> list[Any]:
        name = f"n{rng.randrange(12)}"
        match stream:
            case "pushers":
                return pusher(name, deleted=rng.random() < 0.4)
            case "files":
                gone = rng.random() < 0.4
                return ["delete", name, None, None] if gone else ["create", name, HASH, rng.randrange(9)]
            case "events":
                return ["state", ["!r:b", "m.room.name", name, rng.choice([None, f"$e{rng.random()}"])]]
            case "caches":
                return ["get_user", [name], None]
            case _:
                return [f"@{name}:b"]

    streams = ["pushers", "files", "events", "caches", "push_rules"]
    return [
        (stream, rng.choice(["master", "w1"]), [one(stream) for _ in range(rng.choice([0, 1, 1, 1, 2, 4]))])
        for stream in rng.choices(streams, k=count)
    ]


@pytest.mark.parametrize(("seed", "steps"), [(1, 3), (2, 2)])
def test_step_by_step_it_is_what_all_at_once_is(
    runner: Runner, tmp_path: Path, seed: int, steps: int
) -> None:
    """Whoever compacts every day has what compacting once at the end would have given."""
    rng = random.Random(seed)
    facts = chained(made_up(rng, 180))
    for step in range(steps):
        some = facts[step * 60 : step * 60 + 60]
        extend(tmp_path / "archive", some[:25])
        extend(tmp_path / "archive", some[25:])
        if step == 1:
            # What the former snapshot stands for and what came since become one file.
            assert optimize(runner, Store(str(tmp_path / "archive"))).merged > 0

        made = compacted(runner, tmp_path, file_rows=20)

        rows = rows_of(tmp_path)
        assert folded(tmp_path) == whole(rows)
        assert (made.is_new, made.full, made.snapshot.keys) == (True, step == 0, len(whole(rows)))
        assert sorted(rows) == rows
        if step == steps - 1:
            compacted(runner, tmp_path, full=True, file_rows=20)
            assert rows == rows_of(tmp_path)
        # Whole facts, as many as the snapshot says.
        by_serial = {fact.serial: fact for fact in facts}
        texts: dict[int, list[str]] = {}
        for serial, _, _, row, _ in rows:
            texts.setdefault(serial, []).append(row)
        assert {serial: f"[{','.join(of)}]" for serial, of in texts.items()} == {
            serial: by_serial[serial].rows.decode() for serial in texts
        }
        assert made.snapshot.facts == len(texts)
        assert {file.path.partition("/")[0] for file in made.snapshot.files} == {f"upto={some[-1].serial}"}


def test_a_fact_is_kept_whole_and_what_is_gone_stays_gone(runner: Runner, tmp_path: Path) -> None:
    """Who builds a log from the whole facts of a snapshot does not bring back what was deleted."""
    facts = chained(
        [
            ("pushers", "w", [pusher("a"), pusher("b")]),
            ("pushers", "w", [pusher("c")]),
            ("pushers", "w", [pusher("a", deleted=True)]),
            ("pushers", "w", [pusher("c", deleted=True)]),
        ]
    )
    archive(str(tmp_path / "archive"), facts)

    made = compacted(runner, tmp_path)

    # Of c nothing is left; of a there is an older row in a fact that is kept, so its end is kept too.
    assert [(1, 0, False), (1, 1, True), (3, 0, False)] == rows_of(tmp_path, "serial, seq, last")
    assert (1, 2, 3) == (made.snapshot.keys, made.snapshot.facts, made.snapshot.rows)


def test_void_facts_never_win(runner: Runner, tmp_path: Path) -> None:
    """What a homeserver lost is not true, though it is later; what it had replaced is true again."""
    facts = chained([("pushers", "w", [pusher("a")]), ("pushers", "w", [pusher("a", deleted=True)])])
    extend(tmp_path / "archive", facts)
    compacted(runner, tmp_path)
    assert [] == rows_of(tmp_path)
    made: dict[str, Any] = {
        "serial": 3,
        "epoch": 2,
        "stream": "push_rules",
        "writer": "w",
        "prev_token": 0,
        "token": 1,
    }
    made |= {"committed_at_ms": BEGAN_MS, "rows": b'[["@a:b"]]'}
    later = Fact(**made, digest=chain(facts[-1].digest, **made))
    epoch_start = EpochStart(2, 2, facts[-1].digest, BEGAN_MS, "lost", "pushers", 1)
    extend(tmp_path / "archive", [later], epoch_starts=[epoch_start])

    told = compacted(runner, tmp_path)

    assert not told.full
    assert [(1, True), (3, True)] == rows_of(tmp_path, "serial, last")
    assert [epoch_start] == told.snapshot.epoch_starts
    assert folded(tmp_path) == whole(rows_of(tmp_path))


def test_nothing_new_changes_nothing(runner: Runner, tmp_path: Path) -> None:
    """A timer may run it as often as it likes."""
    facts = chained([("push_rules", "w", [["@a:b"]])] * 4)
    extend(tmp_path / "archive", facts[:2])
    made = compacted(runner, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "snapshot").rglob("*")}

    again = compacted(runner, tmp_path)

    assert (False, made.snapshot) == (again.is_new, again.snapshot)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "snapshot").rglob("*")}
    end = ArchiveTable(Store(str(tmp_path / "archive"))).end
    at = made.snapshot
    assert (end.epoch, end.last_serial, end.digest, end.end) == (at.epoch, at.serial, at.digest, at.clock)


def test_a_crash_leaves_the_former_snapshot(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was begun does not count, and is removed by the next that succeeds."""
    facts = chained([("push_rules", "w", [["@a:b"]])] * 6)
    extend(tmp_path / "archive", facts[:2])
    former = compacted(runner, tmp_path).snapshot
    extend(tmp_path / "archive", facts[2:4])
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "write_snapshot", fail)
        with pytest.raises(OSError, match="no room"):
            compacted(runner, tmp_path)
    assert former == read_snapshot(Store(str(tmp_path / "snapshot")))
    assert [(2, True)] == rows_of(tmp_path, "serial, last")
    assert ["upto=2", "upto=4"] == sorted(p.name for p in (tmp_path / "snapshot").glob("upto=*"))

    compacted(runner, tmp_path)

    assert [(4, True)] == rows_of(tmp_path, "serial, last")
    # The crashed one's file is gone; the former's is not, as somebody may be reading it.
    assert [1, 1] == [len(list(p.iterdir())) for p in sorted((tmp_path / "snapshot").glob("upto=*"))]
    extend(tmp_path / "archive", facts[4:])
    compacted(runner, tmp_path)
    assert ["upto=4", "upto=6"] == sorted(p.name for p in (tmp_path / "snapshot").glob("upto=*"))


def test_of_two_jobs_at_once_one_fails_and_no_snapshot_stays_broken(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quicker one takes the files of the other for leftovers; the next run finds them missing."""
    extend(tmp_path / "archive", chained([("push_rules", "w", [["@a:b"]])] * 4))

    def other_first(*args: Any) -> None:
        monkeypatch.setattr(compaction, "write_snapshot", write_snapshot)
        assert compacted(runner, tmp_path).is_new
        write_snapshot(*args)

    monkeypatch.setattr(compaction, "write_snapshot", other_first)
    with pytest.raises(BadArchive, match="another job has written a snapshot at the same time"):
        compacted(runner, tmp_path)

    again = compacted(runner, tmp_path)

    assert (True, True) == (again.is_new, again.full)
    assert [(4, True)] == rows_of(tmp_path, "serial, last")
    assert not compacted(runner, tmp_path).is_new


def test_a_file_of_a_job_that_began_later_is_not_removed(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has yet to write its manifest."""
    extend(tmp_path / "archive", chained([("push_rules", "w", [["@a:b"]])] * 4))
    later = tmp_path / "snapshot" / "upto=9" / "part-1.parquet"

    def begins_later(*args: Any) -> None:
        later.parent.mkdir()
        later.write_bytes(b"")
        write_snapshot(*args)

    monkeypatch.setattr(compaction, "write_snapshot", begins_later)
    compacted(runner, tmp_path)

    assert later.exists()


def fail(*args: object) -> None:
    """As a full disk does."""
    raise OSError("no room")


def test_a_snapshot_of_something_else_is_refused(runner: Runner, tmp_path: Path) -> None:
    """A snapshot is never mixed from two histories."""
    facts = chained([("push_rules", "w", [["@a:b"]])] * 4)
    store = Store(str(tmp_path / "snapshot"))
    with pytest.raises(BadArchive, match="nothing is archived"):
        compacted(runner, tmp_path)
    extend(tmp_path / "archive", facts)
    made = compacted(runner, tmp_path).snapshot

    def refusal(**changed: Any) -> str:
        store.write(SNAPSHOT, msgspec.json.encode(msgspec.structs.replace(made, **changed)))
        with pytest.raises(BadArchive) as caught:
            compacted(runner, tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "is of another history or server than" in refusal(history="another")
    assert "ends at serial 4, before serial 9 of the snapshot" in refusal(serial=9)
    assert "their digests of serial 4 differ" in refusal(digest=EMPTY)
    assert "their digests of serial 3 differ" in refusal(serial=3, digest=EMPTY)
    assert "has version 2" in refusal(version=2)
    store.write(SNAPSHOT, b"{")
    with pytest.raises(BadArchive, match="is not a valid snapshot"):
        compacted(runner, tmp_path)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_trimmed_archive_continues_no_snapshot_unseen(
    runner: Runner, tmp_path: Path, is_known: bool
) -> None:
    """It may lack the fact whose digest tells: then the epochs decide, and else the whole archive is read."""
    common = chained([("push_rules", "w", [[f"@u{n}:h"]]) for n in range(5)])
    fork = chained([("push_rules", "w", [[f"@fork{n}:h"]]) for n in range(5)], after=common)
    facts, start = restored(common, [("push_rules", "w", [[f"@new{n}:h"]]) for n in range(15)])
    archive(str(tmp_path / "archive"), [*common, *fork])
    compacted(runner, tmp_path)
    shutil.rmtree(tmp_path / "archive")
    store = Store(str(tmp_path / "archive"))
    starts = [start] if is_known else []
    BatchCommitter(store, LOG).commit(
        write_facts(store, [fact for fact in facts if fact.serial != 10]),
        epoch_starts=starts,
        now_ms=BEGAN_MS,
        compacted_upto=LogPosition(2, 20, facts[-1].digest),
    )

    if is_known:
        with pytest.raises(BadArchive, match=r"snapshot has facts that the log of .*archive has lost"):
            compacted(runner, tmp_path)
        return
    made = compacted(runner, tmp_path)

    assert made.full
    assert folded(tmp_path) == whole(rows_of(tmp_path))


PACKAGES: list[Any] = [
    ("packages", "w", [["hello", "1.0"], ["bye", "1.0"]]),
    ("push_rules", "w", [["@a:h"]]),
    ("packages", "w", [["hello", "2.0"]]),
]
DECLARED = ("declarations", "w", [["packages", ["name"], "kept", {"name": "str", "version": "str"}, []]])


def forget_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archive as a machine with an older release does, which knows no key of these streams."""
    monkeypatch.setattr(KeyExtractor, "extract", lambda self, stream, rows: [None] * len(rows))


def test_keys_that_the_archive_lacks_are_computed_again(runner: Runner, tmp_path: Path) -> None:
    """Without a key a row was left out, for good. The next step knows it by the snapshot."""
    facts = chained([DECLARED, *PACKAGES, ("pushers", "w", [pusher("k"), pusher("l")])])
    with pytest.MonkeyPatch.context() as monkeypatch:
        forget_keys(monkeypatch)
        extend(tmp_path / "archive", facts)
    wanted = [(1, 0), (2, 1), (3, 0), (4, 0), (5, 0), (5, 1)]

    made = compacted(runner, tmp_path)

    assert [(serial, seq) for serial, seq, *_ in whole(rows_of(tmp_path))] == wanted
    assert (6, []) == (made.snapshot.keys, made.unknown)
    assert '["bye"]' in {row[2] for row in rows_of(tmp_path)}
    more = chained(
        [("packages", "w", [["bye", "2.0"]]), ("pushers", "w", [pusher("k", deleted=True)])], after=facts
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        forget_keys(monkeypatch)
        extend(tmp_path / "archive", more)
    compacted(runner, tmp_path)
    step_by_step = rows_of(tmp_path)
    compacted(runner, tmp_path, full=True)

    assert step_by_step == rows_of(tmp_path)
    assert [(1, 0), (3, 0), (4, 0), (5, 1), (6, 0)] == [row[:2] for row in whole(step_by_step)]


def test_streams_that_nobody_knows_are_told(runner: Runner, tmp_path: Path) -> None:
    """Their keys are unknown, and so are their last rows."""
    archive(str(tmp_path / "archive"), chained(PACKAGES))

    made = compacted(runner, tmp_path)

    assert (["packages"], 1) == (made.unknown, made.snapshot.keys)


def test_a_missing_file_is_reported(runner: Runner, tmp_path: Path) -> None:
    """No snapshot is made of a part of an archive."""
    archive(str(tmp_path / "archive"), chained([("push_rules", "w", [["@a:b"]])]))
    (tmp_path / "archive" / paths_of(tmp_path / "archive")[0]).unlink()

    with pytest.raises(BadArchive, match="a file is missing"):
        compacted(runner, tmp_path)

    assert not (tmp_path / "snapshot").exists()
