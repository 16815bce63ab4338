"""`synrepl inspect` at a homeserver of the newest release: silent while all is well, and right when not."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from synrepl.homeserver.probe import STREAMS
from tests.interop.client import Client
from tests.interop.drive import Driver, Driving
from tests.interop.harness import Daemon, peer_python
from tests.interop.homeserver import MAIN, PERSISTER, WORKER, Homeserver, Process
from tests.processes.channel import eventually
from tests.processes.loading import report, size
from tests.processes.proxy import Proxy
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.skipif(
    not peer_python("newest").exists(),
    reason="the newest Synapse is not there; run scripts/interop newest",
)

HEALTHY_LOOKS: Final = 3
HEALTHY_SECONDS: Final = size(0, 3600)
ROUNDS: Final = size(1, 20)
"""How often each fault is made."""
ROLLED_BACK: Final = (
    "events_stream_seq",
    "receipts_sequence",
    "account_data_sequence",
    "device_inbox_sequence",
)
"""Sequences of which an id is taken for nothing, as a transaction that is rolled back does."""
BRIDGE: Final = "bridge"


class Bridge:
    """An application service that hears everything, and answers 500 while it `fails`."""

    def __init__(self, folder: Path) -> None:
        self.fails = False
        bridge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(500 if bridge.fails else 200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_GET = do_POST = do_PUT

            def log_message(self, *words: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        everything = [{"regex": ".*", "exclusive": False}]
        settings = {
            "id": BRIDGE,
            "url": f"http://127.0.0.1:{self._server.server_port}",
            "as_token": "a",
            "hs_token": "h",
            "sender_localpart": "bridge",
            "namespaces": {"users": everything, "rooms": everything, "aliases": []},
        }
        self.file = folder / "bridge.yaml"
        self.file.write_text(json.dumps(settings))

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


class Background:
    """Work in threads beside a test."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __call__(self, work: Callable[[], object]) -> None:
        """Run it once."""
        self.threads.append(threading.Thread(target=work, daemon=True))
        self.threads[-1].start()

    def until_ended(self, work: Callable[[], object]) -> threading.Event:
        """Run it again and again, until this event is set."""
        ending = threading.Event()

        def repeat() -> None:
            while not ending.is_set():
                work()

        self(repeat)
        return ending


@contextmanager
def in_background() -> Iterator[Background]:
    """Ends with the last of its threads."""
    background = Background()
    yield background
    for thread in background.threads:
        thread.join(60)


def inspect(homeserver: Homeserver, *options: str, files: dict[str, Path] | None = None) -> dict[str, Any]:
    """What the command says as JSON, with its exit code as ``code``."""
    settings = {name: one.settings for name, one in homeserver.processes.items()} | (files or {})
    words = ["--homeserver", str(homeserver.common), "--homeserver", str(settings.pop(MAIN))]
    for file in settings.values():
        words += ["--worker", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "synrepl", "inspect", *words, "--json", *options],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"code": done.returncode}


def kinds(found: dict[str, Any]) -> set[tuple[str, str]]:
    """Each finding's kind, with the process that it names."""
    return {(one["kind"], one["process"]) for one in found["findings"]}


@contextmanager
def watching(homeserver: Homeserver) -> Iterator[Daemon]:
    """A daemon that watches it."""
    words = ["--homeserver", str(homeserver.common), "--homeserver", str(homeserver.processes[MAIN].settings)]
    for name in (PERSISTER, WORKER):
        words += ["--homeserver-workers", str(homeserver.processes[name].settings)]
    with Daemon(homeserver.folder, *words, server_name=homeserver.server_name) as daemon:
        yield daemon


def watched(daemon: Daemon) -> dict[str, Any]:
    """What the daemon says of the homeserver."""
    with urllib.request.urlopen(f"{daemon.url}/v1/status", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)["homeserver"]
        return found


@pytest.fixture(scope="module")
def redis_proxy() -> Iterator[tuple[RedisServer, Proxy]]:
    """A Redis, and a way to it that can be cut."""
    redis = RedisServer()
    redis.start()
    with Proxy(redis.port) as proxy:
        yield redis, proxy


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    """The homeserver's application service."""
    bridge = Bridge(tmp_path_factory.mktemp("bridge"))
    yield bridge
    bridge.close()


@pytest.fixture(scope="module")
def homeserver(redis_proxy: tuple[RedisServer, Proxy], bridge: Bridge) -> Iterator[Homeserver]:
    """A homeserver. One worker reaches Redis through the proxy."""
    redis, proxy = redis_proxy
    own = {PERSISTER: {"redis": {"enabled": True, "host": "127.0.0.1", "port": proxy.port}}}
    shared = {"app_service_config_files": [str(bridge.file)]}
    with Homeserver(redis=redis, own=own, shared=shared) as found:
        yield found


@pytest.fixture(scope="module")
def listener() -> Iterator[tuple[Homeserver, Proxy]]:
    """A homeserver of which one worker writes nothing, and reaches Redis through this proxy."""
    redis = RedisServer()
    redis.start()
    writers = {key: [WORKER] for key in ("events", "receipts", "device_lists", "thread_subscriptions")}
    with Proxy(redis.port) as proxy:
        own = {PERSISTER: {"redis": {"enabled": True, "host": "127.0.0.1", "port": proxy.port}}}
        with Homeserver(redis=redis, own=own, writers=writers) as found:
            yield found, proxy


@pytest.fixture(params=range(ROUNDS))
def again() -> None:
    """Each fault is made so often."""


fault = pytest.mark.usefixtures("again")


@pytest.fixture
def traffic(homeserver: Homeserver, driver: Driver) -> Iterator[Driving]:
    """Users who do everything meanwhile."""
    with Driving(driver, goes_on=True) as driving:
        driving.wait_for_rounds(1)
        yield driving
    report(f"{driver.rounds} rounds of traffic, {driving.given_up} of them given up")


@pytest.fixture(scope="module")
def driver(homeserver: Homeserver) -> Driver:
    """The users."""
    driver = Driver(homeserver)
    driver.prepare()
    return driver


def test_silent_while_all_is_well(homeserver: Homeserver, traffic: Driving) -> None:
    """Under traffic, with idle writers, ids that were rolled back, and processes that are restarted."""
    until = time.monotonic() + HEALTHY_SECONDS
    processes = itertools.cycle((WORKER, PERSISTER, MAIN))
    for number in itertools.count():
        if number >= HEALTHY_LOOKS and time.monotonic() >= until:
            break
        if number % 3 == 2:
            homeserver.restart(next(processes))
        with psycopg.connect(homeserver.database, autocommit=True) as database:
            for sequence in ROLLED_BACK:
                database.execute(f"SELECT nextval('{sequence}')".encode())
        asks = number % 3 == 1
        found = inspect(homeserver, *["--ask"] * asks)

        assert found["code"] == 0, f"look {number}: {found['findings']} {found['unseen']}"
        assert found["seen"]["processes"] == 3
        assert found["seen"]["writers"] > 10
        assert found["seen"]["announced"] > 5 or not asks
    report(f"{number} looks at a homeserver under traffic found nothing")


def test_an_inspection_takes_2_cpu_seconds_and_150_mb(homeserver: Homeserver) -> None:
    """At most 2 CPU seconds, and 150 MB."""
    program = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        " used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        " print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    )
    words = [sys.executable, "-m", "synrepl", "inspect", "--homeserver", str(homeserver.common)]
    words += ["--homeserver", str(homeserver.processes[MAIN].settings)]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)

    _, kilobytes = done.stdout.split()
    assert int(kilobytes) < 150_000


def test_a_token_is_explained_with_the_database(homeserver: Homeserver, driver: Driver) -> None:
    """Writers have their names, and what is ahead of the database is found."""
    driver.run(1)
    with psycopg.connect(homeserver.database) as database:
        database.execute("INSERT INTO instance_map VALUES (77, 'named') ON CONFLICT DO NOTHING")
        database.execute("SELECT setval('instance_map_instance_id_seq', 77)")
    words = [sys.executable, "-m", "synrepl", "explain", "--homeserver", str(homeserver.common), "--json"]
    done = subprocess.run(
        [*words, "m1~77.2_1_1_999999_1_1_1_1_0"], capture_output=True, text=True, timeout=60, check=True
    )
    (passage,) = json.loads(done.stdout)["passages"]
    rows = {row["field"]: row for row in passage["fields"]}

    assert any("receipt is at 999999, ahead of the database" in word for word in passage["words"])
    assert f"{WORKER} " in rows["receipt"]["stored_now"]
    assert "room, named" in rows


def probe_words(homeserver: Homeserver, folder: Path, *options: str) -> list[str]:
    """The probe of the homeserver by a new user, through the main process and both workers."""
    user = Client.register(homeserver, f"probe-{folder.name}".lower())
    token = folder / "token"
    token.write_text(user.token)
    words = [sys.executable, "-m", "synrepl", "probe", homeserver.urls[WORKER], "--token-file", str(token)]
    for name, url in homeserver.urls.items():
        words += ["--via", f"{name}={url}"]
    return [*words, "--json", *options]


def test_a_probe_finds_all_processes_fresh(homeserver: Homeserver, tmp_path: Path) -> None:
    """Each of the four streams, through each process; nothing of it stays."""
    words = probe_words(homeserver, tmp_path, "--rounds", "3")
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(done.stdout)

    assert (0, []) == (done.returncode, found["late"])
    # This worker knows no such request; a proxy before the homeserver would send it to the main process.
    assert "not cleaned up: its room, left and not forgotten" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {(name, stream) for name in homeserver.urls for stream in STREAMS} == {
        (row["process"], row["stream"]) for row in found["delays"]
    }
    assert all(not row["missed"] and row["p99"] < 5 for row in found["delays"])
    with psycopg.connect(homeserver.database) as database:
        left = "SELECT count(*) FROM device_inbox WHERE user_id LIKE '@probe-%'"
        assert database.execute(left).fetchone() == (0,)


@fault
def test_a_probe_names_the_worker_that_is_late(listener: tuple[Homeserver, Proxy], tmp_path: Path) -> None:
    """Nothing comes to it from Redis for 14 seconds."""
    homeserver, proxy = listener
    words = probe_words(homeserver, tmp_path, "--rounds", "1", "--timeout", "60s")
    with proxy.stalled():
        probe = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            probe.wait(14)
    output, _ = probe.communicate(timeout=120)
    found = json.loads(output)

    assert probe.returncode == 1
    assert {(PERSISTER, stream) for stream in STREAMS} == {
        (row["process"], row["stream"]) for row in found["late"]
    }
    assert all(row["p99"] > 5 for row in found["late"])


@fault
def test_a_stopped_worker(homeserver: Homeserver) -> None:
    """As SIGSTOP, or a thread that never ends, leaves it."""
    process = homeserver.processes[WORKER].pid
    os.kill(process, signal.SIGSTOP)
    try:
        found = inspect(homeserver)
    finally:
        os.kill(process, signal.SIGCONT)

    assert (1, {("silent_process", WORKER)}) == (found["code"], kinds(found))


@fault
def test_a_worker_without_its_connection_to_redis(
    homeserver: Homeserver, redis_proxy: tuple[RedisServer, Proxy]
) -> None:
    """Something closes it, and refuses the next."""
    with redis_proxy[1].broken():
        found = inspect(homeserver)

    assert found["code"] == 1
    assert {("not_connected", PERSISTER)} == kinds(found)


@fault
def test_a_worker_that_hears_nothing(listener: tuple[Homeserver, Proxy], tmp_path: Path) -> None:
    """Its connection is there, and nothing comes. If it wrote, the others were behind as well."""
    homeserver, proxy = listener
    user = Client.register(homeserver, f"user-{tmp_path.name}".lower())
    with in_background() as run:
        with proxy.stalled():
            ending = run.until_ended(lambda: user.send_to_devices([user.user], {"a": "message"}))
            found = inspect(homeserver)
        ending.set()

    assert (1, {("not_received", PERSISTER)}) == (found["code"], kinds(found))
    assert {"to_device"} == {one["stream"] for one in found["findings"]}


@fault
def test_a_transaction_that_hangs_after_it_took_its_id(homeserver: Homeserver) -> None:
    """Somebody holds the row that a receipt replaces, in a session that was left open."""
    held, other = (Client.register(homeserver, f"{name}-{time.time_ns()}") for name in ("held", "other"))
    room = held.create_room(preset="public_chat")
    other.join(room)
    held.read(room, held.send(room, "Welcome."))
    latest = other.send(room, "Thanks.")
    with psycopg.connect(homeserver.database) as holder, in_background() as run:
        blocker = holder.info.backend_pid
        holder.execute("SELECT 1 FROM receipts_linearized WHERE user_id = %s FOR UPDATE", (held.user,))
        run(lambda: held.read(room, latest))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        with psycopg.connect(homeserver.database, autocommit=True) as database:
            eventually(lambda: database.execute(waiting).fetchone(), "a transaction that waits")
        goes_on = run.until_ended(lambda: other.read(room, other.send(room, "More.")))
        found = inspect(homeserver)
        goes_on.set()
        holder.rollback()

    (finding,) = [one for one in found["findings"] if one["kind"] == "held"]
    assert (1, "receipts", WORKER) == (found["code"], finding["stream"], finding["writer"])
    assert f"pg_terminate_backend({blocker})" in finding["remedy"]


@fault
def test_a_writer_that_does_not_run(homeserver: Homeserver) -> None:
    """An id was given up, and of two writers of receipts one is gone: nobody passes that id."""
    reader, other = (Client.register(homeserver, f"{name}-{time.time_ns()}") for name in ("reader", "other"))
    room = other.create_room(preset="public_chat")
    reader.join(room)
    messages = [other.send(room, f"Message {number}.") for number in range(2)]
    homeserver.processes[PERSISTER].stop()
    try:
        with psycopg.connect(homeserver.database, autocommit=True) as database:
            database.execute("SELECT nextval('receipts_sequence')")
        for message in messages:
            reader.read(room, message)
        found = inspect(homeserver)
    finally:
        homeserver.restart(PERSISTER)
    after = inspect(homeserver, "--ask")

    (finding,) = [one for one in found["findings"] if one["kind"] == "writer_not_running"]
    assert (1, "receipts", PERSISTER) == (found["code"], finding["stream"], finding["process"])
    assert (0, []) == (after["code"], after["findings"])


@fault
def test_a_sequence_that_was_set_back(homeserver: Homeserver, driver: Driver) -> None:
    """As after a switch-over to a standby and back."""
    driver.run(1)
    with psycopg.connect(homeserver.database, autocommit=True) as database:
        (value,) = database.execute("SELECT last_value FROM push_rules_stream_sequence").fetchone() or (0,)
        database.execute("SELECT setval('push_rules_stream_sequence', 1)")
        try:
            found = inspect(homeserver)
        finally:
            database.execute("SELECT setval('push_rules_stream_sequence', %s)", (value + 100,))

    told = {(one["kind"], one["stream"]) for one in found["findings"]}
    assert found["code"] == 1
    assert ("sequence_behind_positions", "push_rules") in told
    assert {"push_rules"} == {stream for _, stream in told}


@fault
def test_a_wrong_secret_in_one_file(homeserver: Homeserver, tmp_path: Path) -> None:
    """Neither secret is shown."""
    settings = json.loads(homeserver.processes[WORKER].settings.read_text())
    other = tmp_path / "worker1.yaml"
    other.write_text(json.dumps(settings | {"worker_replication_secret": "quite-another"}))
    found = inspect(homeserver, files={WORKER: other})

    assert (1, {("different_secrets", WORKER)}) == (found["code"], kinds(found))
    assert "quite-another" not in json.dumps(found)
    assert homeserver.secret not in json.dumps(found)


@fault
def test_an_application_service_that_fails(homeserver: Homeserver, driver: Driver, bridge: Bridge) -> None:
    """Synapse has it as down, and its transactions wait."""
    bridge.fails = True
    try:
        driver.run(1)
        with psycopg.connect(homeserver.database, autocommit=True) as database:
            down = "SELECT 1 FROM application_services_state WHERE as_id = %s AND state = 'down'"
            eventually(lambda: database.execute(down, (BRIDGE,)).fetchone(), "it is down")
        found = inspect(homeserver)
    finally:
        bridge.fails = False

    (finding,) = [one for one in found["findings"] if one["kind"] == "appservice_down"]
    assert (1, BRIDGE) == (found["code"], finding["process"])
    assert finding["count"] >= 1


@contextmanager
def second_process(homeserver: Homeserver, name: str, folder: Path) -> Iterator[Process]:
    """Another process of this name: a new one was started before the old one had ended."""
    process = Process(name, folder, has_media=False)
    settings = json.loads(homeserver.processes[name].settings.read_text())
    process.settings.write_text(json.dumps(settings | {"worker_listeners": process.listeners()}))
    process.spawn(peer_python("newest"), homeserver.common)
    try:
        process.wait_until_healthy()
        yield process
    finally:
        process.stop()


@fault
def test_two_processes_of_one_name(homeserver: Homeserver, tmp_path: Path) -> None:
    """The files cannot show it; both answer one question."""
    with second_process(homeserver, WORKER, tmp_path):
        found = inspect(homeserver, "--ask")

    assert found["code"] == 1
    assert ("name_twice", WORKER) in kinds(found)


@pytest.mark.story
@pytest.mark.skipif(
    not peer_python("silent").exists(), reason="Synapse 1.157.1 is not there; run scripts/interop silent"
)
def test_a_stream_that_is_never_announced() -> None:
    """1.157.1 stores what a writer of quarantined media does, and tells nobody (element-hq/synapse#20080)."""
    writers = {"quarantined_media_changes": WORKER}
    with Homeserver(release="silent", media=WORKER, writers=writers) as homeserver:
        administrator = Client.register(homeserver, "administrator", admin=True)

        def quarantine() -> None:
            administrator.quarantine(administrator.upload(b"a file", at=WORKER), at=WORKER)

        with in_background() as run:
            ending = run.until_ended(quarantine)
            heard = inspect(homeserver)
            ending.set()
        asked = inspect(homeserver, "--ask")
        with watching(homeserver) as daemon:
            eventually(lambda: watched(daemon)["looked_at"], "it looks", seconds=30)
            assert [] == watched(daemon)["findings"]
            began = time.monotonic()
            quarantine()
            eventually(lambda: watched(daemon)["findings"], "the finding", seconds=30)
            took = time.monotonic() - began
            seen = watched(daemon)
    report(f"a silent stream was found {took:.1f} s after its row")

    assert (1, 1) == (heard["code"], asked["code"])
    for found in (heard, asked, seen):
        (finding,) = found["findings"]
        assert ("never_announced", "quarantined_media", WORKER) == (
            finding["kind"],
            finding["stream"],
            finding["writer"],
        )


@pytest.fixture
def alone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The settings of an empty database: SQLite's, or those of a PostgreSQL."""
    if request.param == "sqlite":
        yield {"name": "sqlite3", "args": {"database": str(tmp_path / "homeserver.db")}}
        return
    postgres = PostgresServer()
    postgres.start()
    yield {"name": "psycopg2", "args": {"dsn": postgres.new_database(), "cp_min": 1, "cp_max": 5}}
    postgres.remove()


@pytest.mark.parametrize(
    ("peer", "alone"),
    [("current", "sqlite"), ("current", "postgresql"), ("newest", "sqlite")],
    indirect=["alone"],
)
def test_a_homeserver_without_workers(peer: str, alone: dict[str, Any], tmp_path: Path) -> None:
    """1.66.0 shows no positions in its metrics; that is no finding."""
    if not peer_python(peer).exists():
        pytest.skip(f"no Synapse of release {peer!r}; run scripts/interop {peer}")
    process = Process(MAIN, tmp_path, has_media=True)
    key = tmp_path / "signing.key"
    key.write_text("ed25519 a_test " + "A" * 43 + "\n")
    common = tmp_path / "homeserver.yaml"
    settings = {
        "server_name": "alone.test",
        "report_stats": False,
        "enable_metrics": True,
        "signing_key_path": str(key),
        "macaroon_secret_key": "tests",
        "form_secret": "tests",
        "media_store_path": str(tmp_path / "media"),
        "pid_file": str(tmp_path / "main.pid"),
        "database": alone,
        "trusted_key_servers": [],
        "suppress_key_server_warning": True,
    }
    common.write_text(json.dumps(settings))
    process.settings.write_text(json.dumps({"listeners": process.listeners()}))
    process.spawn(peer_python(peer), common)
    try:
        process.wait_until_healthy(says="")
        words = ["--homeserver", str(common), "--homeserver", str(process.settings), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "synrepl", "inspect", *words], capture_output=True, text=True, check=False
        )
    finally:
        process.stop()

    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert (0, [], []) == (done.returncode, found["findings"], found["unseen"])
    assert found["seen"]["processes"] == 1
    assert (found["seen"]["streams"] > 5) is (alone["name"] == "psycopg2")


def test_the_release_that_announces_it_is_well() -> None:
    """1.163.2 in the same form."""
    writers = {"quarantined_media_changes": WORKER}
    with Homeserver(media=WORKER, writers=writers) as homeserver:
        administrator = Client.register(homeserver, "administrator", admin=True)

        def quarantine() -> None:
            administrator.quarantine(administrator.upload(b"a file", at=WORKER), at=WORKER)

        with in_background() as run:
            ending = run.until_ended(quarantine)
            found = inspect(homeserver, "--ask")
            ending.set()

    assert (0, [], []) == (found["code"], found["findings"], found["unseen"])
