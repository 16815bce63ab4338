"""A restored log: where it ends, and that nobody skips what comes after."""

from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.access import IssuedKey, Right
from synrepl.errors import StorageError
from synrepl.replicas.backup import copy_recorder
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.recorded_conversation import Cut
from synrepl.replicas.backup.restored import begin_restored, parse_until, restore_files
from synrepl.replicas.replica import join
from synrepl.replication.retention import keys_of
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.storage.token_floor import MARGIN, floor_above
from synrepl.streams.catalog import ATOMIC_APPENDS
from synrepl.streams.digest import verify
from synrepl.streams.writer import Writer
from tests.memory_engine import FaultyEngine
from tests.replicas.backup.recorders import Recorder, examined, restored
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a backup, which is not there yet."""
    return tmp_path / "backup"


def append_all(cluster: FakeCluster, a: FakeNode) -> None:
    """Facts of several kinds of appends, up to serial 23."""
    cluster.wrote(a, 4)  # 4 to 7
    cluster.wrote(a, 5, key="five")  # 8 to 12
    appends = [("to_device", "master", [b'[["@a",null]]'] * 3), ("push_rules", "master", [b'[["@b"]]'] * 2)]
    cluster.done(a.log.append_atomic(appends, key="atomic"))  # 13 to 18
    cluster.wrote(a, 5)  # 19 to 23


@pytest.mark.parametrize("within", [False, True], ids=["after the first copy", "within it"])
@pytest.mark.parametrize("serial", range(3, 24))
def test_it_ends_at_any_serial(folder: Path, serial: int, within: bool) -> None:
    """Appends that it would divide are left out: those with a key, and atomic ones."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    if not within:
        Recorder(cluster, folder).finish()
    append_all(cluster, a)
    Recorder(cluster, folder).finish()
    expected = {**dict.fromkeys(range(8, 12), 7), **dict.fromkeys(range(13, 18), 12)}.get(serial, serial)

    found = restored(folder, cluster, cut=Cut(serial=serial))

    facts = found.engine.facts
    assert found.result.serial == len(facts) == expected
    assert facts == a.engine.facts[:expected]
    assert verify(facts, "0" * 64) is None
    assert set(found.engine.receipts_by_key) == {
        key for key, last in (("five", 12), ("atomic", 18)) if last <= expected
    }
    assert any(fact.stream == ATOMIC_APPENDS.name for fact in facts) is (expected >= 18)
    positions = found.engine.head().positions
    assert positions == {Writer(one.stream, one.writer): one.token for one in facts}


@pytest.mark.parametrize("serial", range(10))
def test_epochs_within_the_first_copy_begin_where_they_began(folder: Path, serial: int) -> None:
    """A promotion before the first backup, and one before the first fact."""
    cluster = FakeCluster()
    a = cluster.node("a")
    for count in (4, 6):
        cluster.done(Deferred.fromCoroutine(a.log.epochs.begin_next("promoted")))
        cluster.wrote(a, count)
    Recorder(cluster, folder).finish()

    found = restored(folder, cluster, cut=Cut(serial=serial))

    theirs, ours = a.engine.head().epoch_starts, found.engine.head().epoch_starts
    began = [start for start in theirs if start.serial <= serial]
    assert list(ours[:-1]) == began
    assert (ours[-1].why, ours[-1].serial, ours[-1].epoch) == ("restored", serial, 4)
    assert found.engine.facts == a.engine.facts[:serial]


def test_it_ends_at_any_time(folder: Path) -> None:
    """With all that was committed up to then."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 2)
    Recorder(cluster, folder).finish()
    for _ in range(3):
        cluster.pass_(10)
        cluster.wrote(a, 2)
    Recorder(cluster, folder).finish()
    times = [fact.committed_at_ms for fact in a.engine.facts]

    for at, count in (
        (times[0] - 1, 0),
        (times[1], 2),
        (times[2] - 1, 2),
        (times[2], 4),
        (times[5], 6),
        (times[7] + 9, 8),
    ):
        found = restored(folder, cluster, cut=Cut(ms=at))

        newest = times[count - 1] if count else 0
        assert (found.result.serial, found.result.committed_ms) == (count, newest)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (Cut(serial=2), "begins with a copy up to serial 3"),
        (Cut(serial=6), "is valid up to serial 5, and not up to 6"),
        (Cut(ms=0), "begins with a copy up to serial 3, whose newest fact is of 1970-01-01 00:00:00 UTC"),
    ],
)
def test_what_it_does_not_have_is_refused(folder: Path, cut: Cut, words: str) -> None:
    """And the line says what it has."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.pass_(0.1)
    cluster.wrote(a, 3)
    cluster.done(Deferred.fromCoroutine(a.log.trim(1, keys_of(a.table), 1000)))
    Recorder(cluster, folder).finish()
    cluster.wrote(a, 2)
    Recorder(cluster, folder).finish()

    with pytest.raises(StorageError, match=words):
        restored(folder, cluster, cut=cut)


def test_what_was_trimmed_between_two_copies_is_refused(folder: Path) -> None:
    """By a serial or a time: neither copy has it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    for count in (3, 4, 2):
        cluster.pass_(10)
        cluster.wrote(a, count)
        if count == 3:
            Recorder(cluster, folder).finish()
    cluster.pass_(10)
    cluster.wrote(a)
    cluster.pass_(1_000_000, step=100_000)  # the lease ends
    cluster.done(Deferred.fromCoroutine(a.log.trim(8, keys_of(a.table), 10**12)))
    Recorder(cluster, folder).finish()
    times = [fact.committed_at_ms for fact in a.engine.facts]
    began = times[-1]
    assert [one.state.position.serial for one in examined(folder).whole] == [3, 10]

    for cut in (Cut(serial=4), Cut(serial=9), Cut(ms=12_000), Cut(ms=began - 1)):
        words = "no facts between serial 3, whose newest fact is of 1970-.*, and serial 10: they were trimmed"
        with pytest.raises(StorageError, match=words):
            restored(folder, cluster, cut=cut)
    assert restored(folder, cluster, cut=Cut(serial=3)).result.serial == 3
    assert restored(folder, cluster, cut=Cut(ms=began)).result.serial == 10
    part = folder / "parts" / "1.part"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(StorageError, match=r"and serial 10: .*1\.part is damaged: it is cut"):
        restored(folder, cluster, cut=Cut(ms=12_000))


def test_a_log_that_has_facts_is_not_restored_into(folder: Path) -> None:
    """Whoever wants that one gone removes it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()

    with pytest.raises(StorageError, match="the database has a log already, up to serial 3"):
        restored(folder, cluster, engine=a.engine.copy())


def test_damage_is_not_passed_over(folder: Path) -> None:
    """Only if the operator names an end before it, by a serial or by a time that needs no more."""
    cluster = FakeCluster()
    a = cluster.node("a")
    for _ in range(3):
        cluster.pass_(1)
        cluster.wrote(a)
    Recorder(cluster, folder).finish()
    size = (folder / "parts" / "1.part").stat().st_size
    cluster.pass_(10)
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    times = [fact.committed_at_ms for fact in a.engine.facts]
    data = bytearray((folder / "parts" / "1.part").read_bytes())
    data[size + 100] ^= 1
    (folder / "parts" / "1.part").write_bytes(data)

    with pytest.raises(StorageError, match=r"1\.part is damaged: .*--until 3"):
        restored(folder, cluster)
    assert restored(folder, cluster, cut=Cut(serial=3)).result.serial == 3
    for ms in (times[2], times[3] - 1, times[3], times[5] + 1):
        words = r"is valid up to serial 3, whose newest fact is of 1970-.*1\.part is damaged: .*--until 3,"
        with pytest.raises(StorageError, match=words):
            restored(folder, cluster, cut=Cut(ms=ms))
    assert restored(folder, cluster, cut=Cut(ms=times[2] - 1)).result.serial == 2


@pytest.mark.parametrize("is_of_another", [False, True])
def test_what_is_behind_damage_was_known_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_of_another: bool
) -> None:
    """A key that was revoked there stays revoked; its epoch and tokens were given."""
    monkeypatch.setattr(copy_recorder, "PART_BYTES", 1)
    cluster = FakeCluster()
    a = cluster.node("a", secret="shared")
    issued = a.registry.issued
    for name in ("laptop", "phone"):
        cluster.done(Deferred.fromCoroutine(issued.add(name, [Right.READ])))
    ends = [0]
    for _ in range(4):
        cluster.wrote(a, 3)
        Recorder(cluster, folder, secret="shared").finish()
        ends.append(len(BackupFolder(folder).part_numbers()))
        if len(ends) == 3:
            cluster.done(Deferred.fromCoroutine(issued.revoke("laptop")))
            cluster.done(Deferred.fromCoroutine(issued.add("new", [Right.READ])))
            cluster.done(Deferred.fromCoroutine(a.log.epochs.begin_next("promoted")))
    damaged = BackupFolder(folder).part_path(ends[1] + 1)
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    found = examined(folder)
    assert found.whole[-1].state.position.serial == 3
    if is_of_another:
        found.beyond = [state.noted({"history": "another"}) for state in found.beyond]

    result = restored(folder, cluster, cut=Cut(serial=3), found=found)

    keys = msgspec.json.decode(result.log.notes["keys"], type=list[IssuedKey])
    assert [(one.name, one.revoked_ms is not None) for one in keys] == [
        ("laptop", not is_of_another),
        ("phone", False),
    ]
    assert result.result.epoch == (2 if is_of_another else 3)
    assert result.result.floor == MARGIN + (3 if is_of_another else 12)


def test_an_unfinished_restore_begins_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is whole the log is as new; and it is never there without the epoch of the restore."""
    monkeypatch.setattr(join, "COMMIT_FACTS", 5)
    cluster = FakeCluster()
    a = cluster.node("a")
    for _ in range(6):
        cluster.wrote(a, 3)
        Recorder(cluster, folder).finish()
    engine = FaultyEngine()
    left: list[int] = []

    def fail(done: int, total: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise StorageError(op="commit", why="the disk is full")

    for steps in range(1, 9):
        left[:] = [steps]

        with pytest.raises(StorageError, match="the disk is full"):
            restored(folder, cluster, engine=engine, on_progress=fail)

        engine.crash()
        assert engine.facts == []

    found = restored(folder, cluster, engine=engine)

    assert found.engine.facts == a.engine.facts
    assert found.log.head.epoch == 2


def test_no_token_is_given_twice(folder: Path) -> None:
    """Not one of facts beyond the end, nor of facts that came after the backup, as far as the margin goes."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    cluster.wrote(a, 7)
    Recorder(cluster, folder).finish()
    cluster.wrote(a, 5)

    found = restored(folder, cluster, cut=Cut(serial=5))
    appended = cluster.done(found.log.append("to_device", "master", [b'[["@a",null]]'] * 2))
    elsewhere = cluster.done(found.log.append("push_rules", "other", [b'[["@a"]]']))

    assert appended.tokens == [10 + MARGIN + 1, 10 + MARGIN + 2]
    assert elsewhere.tokens == [10 + MARGIN + 1]
    assert found.engine.facts[5].prev_token == 5
    assert found.log.head.floor == 10 + MARGIN


def test_a_second_restore_gives_tokens_above_those_of_the_first(folder: Path) -> None:
    """Its backup knows the floor, even if nothing was appended above it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    a.kill()
    b = cluster.node("b", start=False)
    b.engine = restored(folder, cluster).engine.copy()
    cluster.start(b)
    second = folder.with_name("second")
    Recorder(cluster, second, "b").finish()

    found = restored(second, cluster)

    assert b.log.head.floor == 3 + MARGIN
    assert found.log.head.floor == 3 + 2 * MARGIN


def test_two_restores_of_one_backup_give_different_tokens(folder: Path) -> None:
    """A follower has seen what the first one gave, and must not skip what the second one gives."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    a.kill()
    cluster.pass_(10_000, step=1_000)
    given: list[int] = []

    for serial in (3, 2, 3):
        found = restored(folder, cluster, cut=Cut(serial=serial))
        given += cluster.done(found.log.append("push_rules", "master", [b'[["@a"]]'] * 20)).tokens
        cluster.pass_(0.05)

    assert given == sorted(set(given))
    assert given[0] > 10_000 * 1_000_000


@pytest.mark.parametrize(
    ("tokens", "seconds", "floor"),
    [
        ([], 0.0, MARGIN),
        ([5, 9], 1_000.0, 9 + MARGIN),
        ([9], 1_796_083_200.25, 1_796_083_200_250_000),
        ([1_796_083_200_250_000], 1_796_083_201.0, 1_796_083_200_250_000 + MARGIN),
        ([9], 1e12, 2**52),
        ([9], -1.0, 9 + MARGIN),
        ([2**62], 0.0, 2**62),
    ],
    ids=["new", "a clock at its beginning", "a clock", "restored just now", "no clock", "before", "highest"],
)
def test_the_floor_grows_with_the_clock(tokens: list[int], seconds: float, floor: int) -> None:
    """Whatever the clock says, a margin is left, and tokens stay exact everywhere."""
    assert floor_above(tokens, seconds) == floor


def test_a_replica_of_a_restored_daemon_knows_the_floor_too(folder: Path) -> None:
    """It may be promoted before anything was appended."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    a.kill()
    b = cluster.node("b", start=False)
    b.engine = restored(folder, cluster).engine.copy()
    cluster.start(b)
    c = cluster.node("c", "b")
    cluster.pass_(2)

    cluster.promote(c)

    assert cluster.wrote(c).tokens == [3 + MARGIN + 1]


def test_readers_beyond_the_end_are_told(folder: Path) -> None:
    """A replica of the lost history stops, and says so."""
    cluster = FakeCluster()
    a = cluster.node("a")
    c = cluster.node("c", "b")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    cluster.wrote(a, 3)
    c.kill()
    c.engine = a.engine.copy()
    a.kill()
    b = cluster.node("b", start=False)
    b.engine = restored(folder, cluster).engine.copy()
    cluster.start(b)
    cluster.wrote(b, 5)

    cluster.start(c)
    cluster.pass_(3)

    assert c.replica is not None
    assert c.replica.state == "stopped"
    assert "fork" in c.replica.why


@pytest.mark.parametrize("is_new", [True, False], ids=["a new database", "an empty log"])
def test_a_restored_log_gives_way_to_a_primary_that_was_promoted_meanwhile(
    folder: Path, is_new: bool
) -> None:
    """Both are in the epoch that follows that of the backup, and only one has what was acknowledged since."""
    cluster = FakeCluster()
    listed = ["a", "b"]
    a = cluster.node("a", listed=listed)
    b = cluster.node("b", "a", start=False, listed=listed)
    b.engine.write_notes(uuid="00000001-0000-4000-8000-000000000000")
    cluster.start(b)
    cluster.wrote(a, 3)
    cluster.pass_(3)
    Recorder(cluster, folder).finish()
    a.kill()
    cluster.promote(b, force=True)
    cluster.wrote(b, 4)
    back = cluster.node("a", start=False, listed=listed)
    empty = FaultyEngine()
    if not is_new:
        empty.write_notes(uuid="99999999-0000-4000-8000-000000000000", history="of nobody")
    back.engine = restored(folder, cluster, engine=empty).engine.copy()

    cluster.start(back)
    cluster.pass_(70, step=0.2)

    assert back.log.head.epoch == b.log.head.epoch == 2
    assert (b.roles.role, back.roles.role) == ("primary", "fenced")
    cluster.wrote(b)


def test_a_log_that_was_put_back_fences_nobody_if_it_is_started_as_a_replica(folder: Path) -> None:
    """It keeps its uuid, which may be the higher one: the manual says how to start it."""
    cluster = FakeCluster()
    a = cluster.node("a", start=False)
    a.engine.write_notes(uuid="ffffffff-0000-4000-8000-000000000000")
    cluster.start(a)
    b = cluster.node("b", "a")
    cluster.wrote(a, 3)
    cluster.pass_(3)
    put_back = a.engine.copy()
    a.kill()
    cluster.promote(b, force=True)
    cluster.wrote(b, 4)
    log = Log(put_back, ImmediateThread(), ImmediateThread(), cluster.clock, ephemeral=(), logger=Logger())
    cluster.done(Deferred.fromCoroutine(log.start()))
    cluster.done(Deferred.fromCoroutine(begin_restored(log, cluster.clock)))
    back = cluster.node("a", "b", start=False)
    back.engine = put_back.copy()

    cluster.start(back)
    cluster.pass_(70, step=0.2)

    assert back.log.head.epoch == b.log.head.epoch == 2
    assert (b.roles.role, back.roles.role) == ("primary", "replica")
    cluster.promote(back, force=True)
    assert back.log.head.epoch == 3


def test_a_copy_with_a_filter_is_not_put_back() -> None:
    """As a primary it would give tokens again of what it does not have; nothing in it changes."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", "a", upstream_streams=("to_device",))
    cluster.pass_(3)
    cluster.wrote(a, 3)
    cluster.wrote(a, 4, stream="push_rules")
    cluster.pass_(2)
    b.kill()
    put_back = b.engine.copy()
    put_back.database.is_put_back = True
    before = put_back.database.connection.serialize()

    with pytest.raises(StorageError, match=r"has only some streams or writers.*--upstream"):
        put_back.open()

    assert put_back.database.connection.serialize() == before


def test_a_log_keeps_its_uuid_when_a_restore_into_it_is_refused(folder: Path) -> None:
    """Its state file has it, and others know it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    a.kill()

    with pytest.raises(StorageError, match="has a log already"):
        restored(folder, cluster, engine=a.engine)

    assert a.engine.read_note("uuid") == a.log.uuid


@pytest.mark.parametrize("here", [b"right", b"wrong", None], ids=["whole", "damaged", "unreadable"])
@pytest.mark.parametrize("stored", [b"right", b"wrong"], ids=["whole backup", "damaged backup"])
def test_a_damaged_file_of_the_daemon_is_replaced_by_the_right_one(
    folder: Path, tmp_path: Path, here: bytes | None, stored: bytes
) -> None:
    """And a right one never by a damaged one."""
    backup = BackupFolder(folder)
    backup.open_to_write("backup")
    checksum = sha256(b"right").hexdigest()
    backup.file_path(checksum).write_bytes(stored)
    place = tmp_path / "sha256" / checksum[:2] / checksum[2:]
    place.parent.mkdir(parents=True)
    if here is None:
        place.symlink_to(place)
    else:
        place.write_bytes(here)

    count = restore_files(backup, tmp_path)

    assert count == (here != b"right" and stored == b"right")
    if b"right" in (here, stored):
        assert place.read_bytes() == b"right"
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("17", Cut(serial=17)),
        ("1970-01-01T00:00:01Z", Cut(ms=1000)),
        ("1970-01-01T01:00:01.5+01:00", Cut(ms=1500)),
    ],
)
def test_until_is_a_serial_or_a_time(text: str, cut: Cut) -> None:
    assert parse_until(text) == cut


@pytest.mark.parametrize("text", ["", "x", "-1", "2026-11-30T10:00:00", "yesterday", "１７"])  # noqa: RUF001
def test_a_time_needs_its_offset(text: str) -> None:
    """On such a day nobody should have to guess whose clock is meant."""
    with pytest.raises(ValueError, match="must be a serial, or a time with its offset such as"):
        parse_until(text)


def test_the_backup_of_a_restored_log_is_another_one(folder: Path) -> None:
    """The folder that was restored has what the log lost."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    a.kill()
    a.engine = restored(folder, cluster, cut=Cut(serial=3)).engine.copy()
    cluster.start(a)
    cluster.wrote(a, 9)

    with pytest.raises(Exception, match=r"fork: .*new folder"):
        Recorder(cluster, folder).finish()

    assert examined(folder).whole[-1].state.position.serial == 6
