"""A whole homeserver: its main process, two workers or five, a Redis and a PostgreSQL.

It is of the newest release, unless another is named.
Nothing of it is a stand-in, and nothing of it can be reached from other machines. Every stream that may have
several writers has two or three. It sends nothing to other homeservers.
"""

import atexit
import base64
import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import psycopg

from tests.interop.harness import peer_python
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

MAIN: Final = "master"
"""The main process, as the streams call it."""
PERSISTER: Final = "persister1"
WORKER: Final = "worker1"
READER: Final = "reader1"
FEDERATION: Final = "federation1"
MEDIA: Final = "media1"
PROCESSES: Final = (MAIN, PERSISTER, WORKER)
"""Those of `TWO_WORKERS`."""

WRITERS: Final = {
    "events": [PERSISTER, WORKER],
    "receipts": [WORKER, PERSISTER],
    "device_lists": [WORKER, MAIN],
    "thread_subscriptions": [WORKER, PERSISTER],
    "typing": WORKER,
    "to_device": WORKER,
    "account_data": WORKER,
    "presence": WORKER,
    "push_rules": WORKER,
}
"""Who writes what; the main process writes the rest."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The workers of a homeserver, and which process does what. The main process does what is left."""

    workers: Sequence[str]
    writers: Mapping[str, str | Sequence[str]]
    """The writer of each stream, or its writers."""
    federation_sender: str
    media: str = MAIN
    background: str = MAIN
    """Runs the background tasks, and keeps the user directory."""


TWO_WORKERS: Final = Layout(workers=(PERSISTER, WORKER), writers=WRITERS, federation_sender=WORKER)

FIVE_WORKERS: Final = Layout(
    workers=(PERSISTER, WORKER, READER, FEDERATION, MEDIA),
    writers={
        "events": [PERSISTER, WORKER, FEDERATION],
        "receipts": [WORKER, PERSISTER, READER],
        "device_lists": [WORKER, MAIN, PERSISTER],
        "thread_subscriptions": [WORKER, PERSISTER, READER],
        "typing": WORKER,
        "to_device": FEDERATION,
        "account_data": MEDIA,
        "presence": FEDERATION,
        "push_rules": PERSISTER,
        "quarantined_media_changes": MEDIA,
    },
    federation_sender=FEDERATION,
    media=MEDIA,
    background=MEDIA,
)
"""Nothing waits for the reader: others write the same streams, and clients choose among them."""

LAYOUT_OF_CURRENT: Final = Layout(
    workers=(PERSISTER, WORKER),
    writers={
        "events": [PERSISTER, WORKER],
        "receipts": WORKER,
        "typing": WORKER,
        "to_device": WORKER,
        "account_data": WORKER,
        "presence": WORKER,
    },
    federation_sender=WORKER,
)
"""Two workers of the release `current`, which knows fewer writers, and several of events alone."""

SUBSCRIBED: Final = "Successfully subscribed to redis stream"
"""What a process says when it hears the others."""

START_SECONDS: Final = 120.0  # two workers import Synapse at once, and the main process makes the tables
STOP_SECONDS: Final = 20.0
STEP_SECONDS: Final = 0.1

WATCH: Final = """
if read -r told; then exit 0; fi
kill -TERM "$1"
tries=0
while kill -0 "$1" && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -KILL "$1"
rm -rf "$2"
"""
"""Ends a process and removes the directory when the program that started it went without a word."""

LOGGING: Final = {
    "version": 1,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s - %(request)s - %(message)s"}},
    "handlers": {"stream": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"level": "INFO", "handlers": ["stream"]},
    "disable_existing_loggers": False,
}
UNLIMITED: Final = {"per_second": 10_000, "burst_count": 10_000}


class Process:
    """One process of the homeserver: its ports, its settings and its log stay when it is started again."""

    def __init__(self, name: str, folder: Path, *, has_media: bool) -> None:
        self.name = name
        self.has_media = has_media
        self.client_port, self.replication_port, self.metrics_port = free_port(), free_port(), free_port()
        self.settings = folder / f"{name}.json"
        self.log_file = folder / f"{name}.log"
        self._folder = folder
        self._said = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where its clients go."""
        return f"http://127.0.0.1:{self.client_port}"

    @property
    def replication_url(self) -> str:
        """Where its fellows go."""
        return f"http://127.0.0.1:{self.replication_port}"

    @property
    def pid(self) -> int:
        """Its number, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has said since the beginning."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def ports(self) -> set[int]:
        """The local ports of all its connections."""
        assert self._process is not None
        sockets = set()
        for file in Path(f"/proc/{self._process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                sockets.add(str(file.readlink()))
        table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {int(words[1].partition(":")[2], 16) for words in table if f"socket:[{words[9]}]" in sockets}

    def listeners(self) -> list[dict[str, Any]]:
        """What it listens on, as its settings say it."""
        here = {"type": "http", "bind_addresses": ["127.0.0.1"], "x_forwarded": True}
        names = ["client", "media"] if self.has_media else ["client"]
        return [
            here | {"port": self.client_port, "resources": [{"names": names}]},
            here | {"port": self.replication_port, "resources": [{"names": ["replication"]}]},
            {"type": "metrics", "bind_addresses": ["127.0.0.1"], "port": self.metrics_port},
        ]

    def spawn(self, python: Path, common: Path) -> None:
        """Start it; `wait_until_healthy` says when it is there."""
        assert self._process is None
        self._said = len(self.log)
        app = "homeserver" if self.name == MAIN else "generic_worker"
        command = [str(python), "-m", f"synapse.app.{app}", "-c", str(common), "-c", str(self.settings)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )
        watch = ["/bin/sh", "-c", WATCH, "sh", str(self._process.pid), str(self._folder)]
        self._watch = subprocess.Popen(
            watch,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def wait_until_healthy(self, says: str = SUBSCRIBED) -> None:
        """Return once it answers its clients, and hears its fellows (has said this in its log)."""
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    if says in self.log[self._said :]:
                        return
            assert self._process is not None
            status = self._process.poll()
            assert status is None, f"{self.name} ended with {status}:\n{self.log[-6000:]}"
            assert time.monotonic() < until, f"{self.name} does not answer:\n{self.log[-6000:]}"
            time.sleep(STEP_SECONDS)

    def stop(self) -> None:
        """As an operator stops it. Harmless when it does not run."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would. Harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
            self._process = None
        watch, self._watch = self._watch, None
        if watch is not None:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                watch.communicate(b"bye\n", STOP_SECONDS)


class Homeserver:
    """The homeserver; a context manager that starts all of it, and leaves nothing behind.

    `others` are the HTTP ports of writers that are none of its processes, by their names; `writers` says who
    writes what where that is not as in the `layout`. `own` are settings of single processes, by their names,
    and `shared` are further settings of all. The process `media` has the media, if not that of the layout.
    """

    def __init__(
        self,
        server_name: str = "hs.test",
        *,
        redis: RedisServer | None = None,
        others: Mapping[str, int] = MappingProxyType({}),
        writers: Mapping[str, Any] = MappingProxyType({}),
        own: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        shared: Mapping[str, Any] = MappingProxyType({}),
        release: str = "newest",
        layout: Layout = TWO_WORKERS,
        media: str | None = None,
    ) -> None:
        self.server_name = server_name
        self.secret = "replication-secret-of-the-tests"
        """What its processes show each other."""
        self.registration_secret = "registration-secret-of-the-tests"
        """What `Client.register` shows."""
        self.folder = Path(tempfile.mkdtemp(prefix="synrepl-homeserver-"))
        self.redis = redis if redis is not None else RedisServer()
        self.layout = layout
        self.media = layout.media if media is None else media
        self.processes = {
            name: Process(name, self.folder, has_media=name == self.media) for name in (MAIN, *layout.workers)
        }
        self.database = ""
        """The URL of its database, once it has started."""
        self._others = others
        self._writers = {**layout.writers, **writers}
        self._own = own
        self._shared = shared
        self._postgres = PostgresServer()
        self.common = self.folder / "common.json"
        """The settings that its processes share."""
        self._release = release
        self._python = peer_python(release)
        atexit.register(self.stop)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def urls(self) -> dict[str, str]:
        """Where clients reach each process, by its name."""
        return {name: process.url for name, process in self.processes.items()}

    @property
    def instance_map(self) -> dict[str, str]:
        """Where missed rows are asked for, by the name of their writer."""
        return {name: process.replication_url for name, process in self.processes.items()}

    def log(self, name: str) -> str:
        """What this process has said."""
        return self.processes[name].log

    def writers_of(self, stream: str) -> list[str]:
        """Its processes that write this stream; the main process, unless the settings name others."""
        named = self._writers.get(stream, MAIN)
        return [name for name in ([named] if isinstance(named, str) else named) if name in self.processes]

    @property
    def named_writers(self) -> frozenset[str]:
        """The streams whose writers the settings name."""
        return frozenset(self._writers)

    def start(self) -> None:
        """Start all of it, and return once every process answers."""
        self.redis.start()
        self._postgres.start()
        self.database = self._postgres.new_database()
        self._write_settings()
        # The main process makes the tables, without which the others do not start, and then fills some of
        # them from others. Until that is done it may note rooms to look at, which cannot be deleted then.
        self._start(MAIN)
        self._wait_for_background_updates()
        self._start(*self.layout.workers)

    def stop(self) -> None:
        """Stop it for good, and remove what it left. Harmless when repeated."""
        try:
            for process in self.processes.values():
                process.kill()
            self._postgres.remove()
            self.redis.remove()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            atexit.unregister(self.stop)

    def restart(self, name: str) -> None:
        """Stop a process in order, start it again, and return once it answers."""
        self.processes[name].stop()
        self._start(name)

    def redis_clients(self) -> dict[str, str]:
        """The connections of its processes to Redis: which process has which, by their ids there."""
        owners = {port: name for name, process in self.processes.items() for port in process.ports()}
        found = {one["id"]: owners.get(int(one["addr"].rpartition(":")[2])) for one in self.redis.clients()}
        return {client: name for client, name in found.items() if name is not None}

    def rows(self, stream: str, writer: str, after: int, upto: int) -> list[tuple[int, Any]]:
        """The rows that a process gives for its tokens after this one up to that one, as its fellows ask."""
        updates: list[tuple[int, Any]] = []
        for page in range(1000):
            txn = hashlib.sha256(f"{stream} {writer} {after} {upto} {page} {time.monotonic()}".encode())
            query = urllib.parse.urlencode({"from_token": after, "upto_token": upto})
            path = f"/_synapse/replication/get_repl_stream_updates/{stream}/{txn.hexdigest()[:10]}"
            request = urllib.request.Request(
                f"{self.processes[writer].replication_url}{path}?{query}",
                headers={"Authorization": f"Bearer {self.secret}"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                said = json.load(answer)
            updates += [(token, row) for token, row in said["updates"]]
            if not said["limited"]:
                return updates
            after = said["upto_token"]
        raise AssertionError(f"{writer} has no end of {stream}")

    def _wait_for_background_updates(self) -> None:
        until = time.monotonic() + START_SECONDS
        with psycopg.connect(self.database, autocommit=True) as database:
            while left := database.execute("SELECT update_name FROM background_updates").fetchall():
                assert time.monotonic() < until, f"still to do: {left}"
                time.sleep(STEP_SECONDS)

    def _start(self, *names: str) -> None:
        for name in names:
            self.processes[name].spawn(self._python, self.common)
        for name in names:
            self.processes[name].wait_until_healthy()

    def _write_settings(self) -> None:
        log = self.folder / "log.json"
        log.write_text(json.dumps(LOGGING))
        key = self.folder / "signing.key"
        seed = hashlib.sha256(self.server_name.encode()).digest()
        key.write_text(f"ed25519 a_test {base64.b64encode(seed).decode().rstrip('=')}\n")
        self.common.write_text(json.dumps(self._common_settings(log, key) | dict(self._shared)))
        for name, process in self.processes.items():
            settings: dict[str, Any] = {"listeners": process.listeners()}
            if name != MAIN:
                settings = {
                    "worker_app": "synapse.app.generic_worker",
                    "worker_name": name,
                    "worker_listeners": process.listeners(),
                    "worker_log_config": str(log),
                    "enable_media_repo": process.has_media,
                }
                if self._release == "current":
                    main = self.processes[MAIN]
                    settings |= {
                        "worker_replication_host": "127.0.0.1",
                        "worker_replication_http_port": main.replication_port,
                        "worker_main_http_uri": main.url,
                    }
            process.settings.write_text(json.dumps(settings | dict(self._own.get(name, {}))))

    def _common_settings(self, log: Path, key: Path) -> dict[str, Any]:
        ports = {name: process.replication_port for name, process in self.processes.items()}
        if self._release == "current":
            del ports[MAIN]  # which has settings of its own there
        return {
            "server_name": self.server_name,
            "report_stats": False,
            "enable_metrics": True,
            "log_config": str(log),
            "signing_key_path": str(key),
            "pid_file": str(self.folder / "main.pid"),
            "background_updates": {"sleep_enabled": False},
            "media_store_path": str(self.folder / "media"),
            "enable_media_repo": self.media == MAIN,
            "database": {"name": "psycopg2", "args": {"dsn": self.database, "cp_min": 1, "cp_max": 5}},
            "redis": {"enabled": True, "host": "127.0.0.1", "port": self.redis.port},
            "worker_replication_secret": self.secret,
            "registration_shared_secret": self.registration_secret,
            "macaroon_secret_key": "tests",
            "form_secret": "tests",
            "instance_map": {
                "main" if name == MAIN else name: {"host": "127.0.0.1", "port": port}
                for name, port in (ports | dict(self._others)).items()
            },
            "stream_writers": self._writers,
            # With somebody else to send it, the main process has a stream of it.
            "federation_sender_instances": [self.layout.federation_sender],
            "presence": {"enabled": True},
            "include_profile_updates_in_sync": True,
            "experimental_features": {"msc4306_enabled": True, "msc4354_enabled": True},
            "federation_domain_whitelist": [],
            "trusted_key_servers": [],
            "suppress_key_server_warning": True,
            "url_preview_enabled": False,
            "rc_login": {"address": UNLIMITED, "account": UNLIMITED, "failed_attempts": UNLIMITED},
            "rc_joins": {"local": UNLIMITED, "remote": UNLIMITED},
            "rc_invites": {"per_room": UNLIMITED, "per_user": UNLIMITED, "per_issuer": UNLIMITED},
            "rc_presence": {"per_user": UNLIMITED},
            **({} if self.media == MAIN else {"media_instance_running_background_jobs": self.media}),
            **self._background_settings(),
        } | dict.fromkeys(
            [
                "rc_message",
                "rc_registration",
                "rc_admin_redaction",
                "rc_joins_per_room",
                "rc_room_creation",
                "rc_key_requests",
                "rc_media_create",
                "rc_profile",
                "rc_reports",
                "rc_user_directory",
            ],
            UNLIMITED,
        )

    def _background_settings(self) -> dict[str, str]:
        name = self.layout.background
        if name == MAIN:
            return {}
        return {"run_background_tasks_on": name, "update_user_directory_from_worker": name}
