"""Files of a backup: there before the facts that refer to them."""

from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import HttpRequest
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.file_copies import ASK_SECONDS, NO_ADDRESS, FileCopies, references
from synrepl.replicas.backup.recorded_conversation import Cut
from synrepl.replication.retention import keys_of
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.declared import StreamBody
from synrepl.streams.facts import Fact
from synrepl.testing.heap_clock import HeapClock
from tests.replicas.backup.recorders import Recorder, examined, restored
from tests.replicas.clusters import FakeCluster

HELLO = b"hello\n"
NAME = sha256(HELLO).hexdigest()
OTHER = "0" * 64


class FakeDaemon:
    """Serves some files, as an `HttpClient` does; `error` comes instead."""

    base_url = "http://a"

    def __init__(self, files: dict[str, bytes], error: Exception | None = None) -> None:
        self.files = files
        self.error = error
        self.asked: list[str] = []

    async def open(self, request: HttpRequest) -> Any:
        """Answer with a file, or with the error."""
        checksum = request.target.rpartition("/")[2]
        self.asked.append(checksum)
        if self.error is not None:
            raise self.error
        if checksum not in self.files:
            raise HttpError(404, "no_such_file", "no name refers to it")
        return Answer(self.files[checksum])


class Answer:
    """An answer with these bytes, one by one."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def deliverBody(self, protocol: Any) -> None:
        """Deliver them."""
        for byte in self._data:
            protocol.dataReceived(bytes([byte]))
        protocol.connectionLost(Failure(ResponseDone()))


def fact(stream: str, rows: bytes) -> Fact:
    """A fact with these rows."""
    return Fact(1, 1, stream, "w", 0, 1, rows, 0, "")


def named(checksum: str) -> Fact:
    """A fact that names a file."""
    return fact("files", b'[["create","media/hello.txt","%b",6]]' % checksum.encode())


def fetch(folder: Path, daemon: FakeDaemon | None, *facts: Fact) -> tuple[FileCopies, BackupFolder]:
    """Fetch the files of these facts."""
    opened = BackupFolder(folder)
    (folder / "files").mkdir(parents=True, exist_ok=True)
    client: Any = daemon
    copies = FileCopies(opened, ImmediateThread(), HeapClock(), lambda: client)
    results: list[Any] = []
    Deferred.fromCoroutine(copies.open())
    Deferred.fromCoroutine(copies.fetch(facts)).addBoth(results.append)
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return copies, opened


def run(cluster: FakeCluster, folder: Path, daemon: FakeDaemon | None) -> FileCopies:
    """Run a backup to its end, as the command does."""
    client: Any = daemon
    copies = FileCopies(BackupFolder(folder), ImmediateThread(), cluster.clock, lambda: client)
    recorder = Recorder(cluster, folder, fetch_files=copies.fetch)
    cluster.done(Deferred.fromCoroutine(copies.open()))
    recorder.finish()
    cluster.done(Deferred.fromCoroutine(copies.ask_again()))
    return copies


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (named(NAME), [NAME]),
        (fact("files", b'[["delete","media/hello.txt",null,null]]'), []),
        (fact("packages", b'[["x","1",{"sha256":"%b","size":6},null]]' % NAME.encode()), [NAME]),
        (fact("packages", b'[["%b"]]' % NAME.encode()), []),
    ],
)
def test_facts_refer_to_files(one: Fact, found: list[str]) -> None:
    """By the stream of files, and by columns of streams of one's own."""
    assert list(references([one])) == found


def test_a_file_is_stored_under_its_checksum_once(tmp_path: Path) -> None:
    """A second fact, or another run, does not ask again."""
    daemon = FakeDaemon({NAME: HELLO})
    _, folder = fetch(tmp_path, daemon, named(NAME), named(NAME))

    fetch(tmp_path, daemon, named(NAME))

    assert folder.file_path(NAME).read_bytes() == HELLO
    assert daemon.asked == [NAME]
    assert [one.name for one in folder.files_path.iterdir()] == [NAME]


def test_a_file_that_is_gone_is_left_out(tmp_path: Path) -> None:
    """A later fact has taken its last name away."""
    _, folder = fetch(tmp_path, FakeDaemon({}), named(OTHER))

    assert folder.stored_files() == []


@pytest.mark.parametrize("is_of_earlier_release", [False, True])
def test_a_file_that_could_not_be_asked_for_is_asked_for_later(
    tmp_path: Path, is_of_earlier_release: bool
) -> None:
    """An earlier release counted it, and forgot it: what its folder lacks is found in the parts."""
    folder = tmp_path / "backup"
    cluster = FakeCluster()
    a = cluster.node("a")
    for name in ("media/a.txt", "media/b.txt"):
        cluster.done(a.append("files", [[["create", name, NAME, 6]]]))
    first = run(cluster, folder, None)
    if is_of_earlier_release:
        rmtree(folder / "missing")
        # A run was killed while it looked.
        (folder / ".missing.new").mkdir()
    cluster.wrote(a)
    second = run(cluster, folder, None)

    assert (first.not_asked, second.not_asked) == (1, 1)
    assert first.missing == second.missing == {NAME: NO_ADDRESS}

    third = run(cluster, folder, FakeDaemon({}, HttpError(503, "file_not_here", "later")))
    fourth = run(cluster, folder, FakeDaemon({}, NotConnected("away")))
    last = run(cluster, folder, FakeDaemon({NAME: HELLO}))

    assert (len(third.missing), third.not_asked) == (1, 0)
    assert (fourth.missing, fourth.not_asked) == ({NAME: "away"}, 1)
    assert (last.missing, last.not_asked, examined(folder).missing_files) == ({}, 0, [])


def test_a_backup_that_goes_on_asks_again(tmp_path: Path) -> None:
    """Until then a file has been uploaded, or a replica has fetched it."""
    client: Any = FakeDaemon({}, HttpError(503, "file_not_here", "later"))
    clock = HeapClock()
    copies = FileCopies(BackupFolder(tmp_path), ImmediateThread(), clock, lambda: client)
    (tmp_path / "files").mkdir()
    Deferred.fromCoroutine(copies.open())
    Deferred.fromCoroutine(copies.fetch([named(NAME)]))
    asking = Deferred.fromCoroutine(copies.keep_asking()).addErrback(lambda failure: None)
    clock.advance(ASK_SECONDS)
    client.error, client.files = None, {NAME: HELLO}

    before = copies.missing.copy()
    clock.advance(ASK_SECONDS)
    asking.cancel()

    assert (list(before), copies.missing) == ([NAME], {})
    assert BackupFolder(tmp_path).stored_files() == client.asked[:1] == [NAME]


@pytest.mark.parametrize(
    ("daemon", "error"),
    [
        (FakeDaemon({NAME: b"other"}), RemoteProtocolError),
        (FakeDaemon({}, HttpError(503, "busy", "later")), NotConnected),
        (FakeDaemon({}, NotConnected("away")), NotConnected),
    ],
)
def test_what_cannot_be_fetched_now_is_an_error(
    tmp_path: Path, daemon: FakeDaemon, error: type[Exception]
) -> None:
    """The facts are not recorded then; the next attempt asks again. Nothing half is left."""
    with pytest.raises(error):
        fetch(tmp_path, daemon, named(NAME))

    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        HttpError(503, "file_not_here", "it has not been uploaded"),
        HttpError(404, "not_found", "this daemon stores no files"),
        HttpError(403, "filtered", "only some writers"),
    ],
)
def test_a_file_that_the_daemon_lacks_stops_nothing(tmp_path: Path, error: HttpError) -> None:
    """Its facts are recorded; verify names it; each later run asks for it again."""
    folder = tmp_path / "backup"
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    daemon = FakeDaemon({}, error)
    cluster.done(a.append("files", [[["create", "media/lost.png", NAME, 6]]]))

    first = run(cluster, folder, daemon)
    cluster.wrote(a, 2)
    second = run(cluster, folder, daemon)

    assert daemon.asked == [NAME] * 3
    assert first.missing == second.missing == {NAME: str(error)}
    found = examined(folder)
    assert found.whole[-1].state.position.serial == a.log.head.serial
    assert found.missing_files == ["media/lost.png"]

    daemon.error, daemon.files = None, {NAME: HELLO}
    third = run(cluster, folder, daemon)

    assert third.missing == {}
    assert (folder / "files" / NAME).read_bytes() == HELLO
    assert examined(folder).missing_files == []
    run(cluster, folder, daemon)
    assert daemon.asked == [NAME] * 4


def test_a_missing_file_whose_name_is_gone_is_asked_for_no_more(tmp_path: Path) -> None:
    """Whoever made the name up has deleted it."""
    folder = tmp_path / "backup"
    cluster = FakeCluster()
    a = cluster.node("a")
    daemon = FakeDaemon({}, HttpError(503, "file_not_here", "it has not been uploaded"))
    cluster.done(a.append("files", [[["create", "media/lost.png", NAME, 6]]]))
    assert NAME in run(cluster, folder, daemon).missing

    daemon.error = None
    after = run(cluster, folder, daemon)
    asked = len(daemon.asked)
    run(cluster, folder, daemon)

    assert after.missing == {}
    assert len(daemon.asked) == asked


def test_a_daemon_that_goes_away_leaves_what_is_missing(tmp_path: Path) -> None:
    """For the next run; a file that is not the right one is no reason to leave out the others."""
    folder = BackupFolder(tmp_path)
    (tmp_path / "files").mkdir()
    folder.begin_missing([OTHER, NAME])
    daemon: Any = FakeDaemon({OTHER: b"wrong", NAME: HELLO}, NotConnected("away"))
    copies = FileCopies(folder, ImmediateThread(), HeapClock(), lambda: daemon)
    Deferred.fromCoroutine(copies.open())

    Deferred.fromCoroutine(copies.ask_again())
    assert (daemon.asked, list(copies.missing)) == ([OTHER], [OTHER, NAME])

    daemon.error = None
    Deferred.fromCoroutine(copies.ask_again())
    assert list(copies.missing) == folder.missing_files() == [OTHER]
    assert "sent other bytes" in copies.missing[OTHER]


def test_facts_wait_for_their_files(tmp_path: Path) -> None:
    """The folder never has a position whose files it lacks; a backup that cannot get them goes on later."""
    folder = tmp_path / "backup"
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    cluster.done(a.append("files", [[["create", "media/hello.txt", NAME, 6]]]))
    daemon = FakeDaemon({}, NotConnected("away"))
    client: Any = daemon
    copies = FileCopies(BackupFolder(folder), ImmediateThread(), cluster.clock, lambda: client)
    recorder = Recorder(cluster, folder, fetch_files=copies.fetch)
    cluster.pass_(5)

    before = examined(folder).whole[-1].state.position.serial
    daemon.error, daemon.files = None, {NAME: HELLO}
    recorder.finish(30)

    found = examined(folder)
    assert (before, found.whole[-1].state.position.serial) == (3, 4)
    assert (found.files, found.missing_files) == (1, [])
    (folder / "files" / NAME).unlink()
    assert examined(folder).missing_files == ["media/hello.txt"]
    assert list(restored(folder, cluster).result.missing_files) == ["media/hello.txt"]


def test_what_is_restored_says_which_of_its_files_are_missing(tmp_path: Path) -> None:
    """At each serial those that are named there: also one whose name is gone at the end."""
    folder = tmp_path / "backup"
    cluster = FakeCluster()
    a = cluster.node("a")
    rows: list[list[object]] = [
        ["create", "media/a", OTHER, 6],
        ["create", "media/b", NAME, 6],
        ["delete", "media/a", None, None],
    ]
    for row in rows:
        cluster.done(a.append("files", [[row]]))
    run(cluster, folder, FakeDaemon({NAME: HELLO}))
    cluster.done(a.append("files", [[["create", "media/a", OTHER, 6]]]))
    cluster.done(a.append("files", [[["delete", "media/a", None, None]]]))
    run(cluster, folder, FakeDaemon({}))

    told = [restored(folder, cluster, cut=Cut(serial=serial)).result.missing_files for serial in range(6)]

    assert told == [[], ["media/a"], ["media/a"], [], ["media/a"], []]
    assert examined(folder).missing_files == []
    (folder / "files" / NAME).write_bytes(b"damaged")
    assert restored(folder, cluster, cut=Cut(serial=3)).result.missing_files == ["media/b"]


@pytest.mark.parametrize("runs", [1, 2], ids=["in the first copy", "after it"])
def test_files_of_declared_streams_are_missed_too(tmp_path: Path, runs: int) -> None:
    """As long as a row refers to them."""
    folder = tmp_path / "backup"
    cluster = FakeCluster()
    a = cluster.node("a")
    if runs == 2:
        run(cluster, folder, FakeDaemon({}))
    columns = {"name": "str", "version": "int", "archive": "file", "log": "file?"}
    for key in (["name", "version"], []):
        body = StreamBody(name="packages" if key else "logs", key=key, columns=columns)
        cluster.done(Deferred.fromCoroutine(a.declared.declare(body.declaration())))
    hello, other = {"sha256": NAME, "size": 6}, {"sha256": OTHER, "size": 6}
    for stream in ("packages", "logs"):
        for row in (["x", 1, other, hello], ["x", 2, hello, other], ["x", 1, hello, None]):
            cluster.done(a.append(stream, [[row]]))
    lacking = run(cluster, folder, FakeDaemon({NAME: HELLO}, None))

    unkeyed = ["logs [6,0] archive", "logs [7,0] log"]
    assert lacking.missing == {}  # no name refers to it any more, the daemon said
    assert examined(folder).missing_files == [*unkeyed, 'packages ["x",2] log']
    early = restored(folder, cluster, cut=Cut(serial=4)).result
    assert early.missing_files == ['packages ["x",1] archive', 'packages ["x",2] log']
    (folder / "files" / NAME).unlink()
    found = examined(folder)
    assert [one for one in found.missing_files if "packages" in one] == [
        *('packages ["x",1] archive', 'packages ["x",2] archive', 'packages ["x",2] log')
    ]
    assert found.missing_checksums == [OTHER, NAME]


def test_a_new_copy_names_its_own_files(tmp_path: Path) -> None:
    """What the copy before it named may have been deleted by a fact that was trimmed."""
    folder = tmp_path / "backup"
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.done(a.append("files", [[["create", "media/a", OTHER, 6]]]))
    run(cluster, folder, None)
    cluster.done(a.append("files", [[["delete", "media/a", None, None]]]))
    cluster.wrote(a, 3)
    cluster.pass_(1_000_000, step=100_000)  # the lease ends
    cluster.done(Deferred.fromCoroutine(a.log.trim(a.log.head.serial, keys_of(a.table), 10**12)))
    run(cluster, folder, None)

    found = examined(folder)
    assert len(found.whole) == 2
    assert found.missing_files == []
    assert restored(folder, cluster, cut=Cut(serial=1)).result.missing_files == ["media/a"]
