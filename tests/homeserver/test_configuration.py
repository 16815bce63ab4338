"""A homeserver's configuration is read as Synapse reads it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from synrepl.errors import ConfigError
from synrepl.homeserver.addresses import MetricsAddress
from synrepl.homeserver.configuration import Homeserver, read_homeserver

POSTGRES = {"user": "u", "password": "pw0rd", "database": "d", "cp_min": 5}
SHARED = {
    "server_name": "example.org",
    "enable_metrics": True,
    "worker_replication_secret": "s3cret",
    "redis": {"enabled": True, "host": "redis", "password": "pa55"},
    "database": {
        "name": "psycopg2",
        "args": {"user": "u", "password": "pw0rd", "database": "d", "cp_min": 5},
    },
    "instance_map": {"main": {"host": "10.0.0.1", "port": 1}, "w1": {"host": "10.0.0.2", "port": 1}},
    "stream_writers": {"events": ["w1", "w2"], "typing": "w1"},
}
METRICS = {"type": "metrics", "port": 9100, "bind_addresses": ["0.0.0.0"]}


def write(folder: Path, name: str, **settings: Any) -> Path:
    """A file with these settings."""
    path = folder / name
    path.write_text(yaml.safe_dump(settings))
    return path


def worker(folder: Path, name: str, file: str = "", **settings: Any) -> Path:
    """A worker's file."""
    return write(
        folder,
        file or f"{name}.yaml",
        **{"worker_app": "synapse.app.generic_worker", "worker_name": name, **settings},
    )


def read(folder: Path, *workers: Path, **changes: Any) -> Homeserver:
    """The homeserver of these settings."""
    return read_homeserver([write(folder, "homeserver.yaml", **(SHARED | changes))], workers)


def test_later_files_replace_keys_at_the_top_whole(tmp_path: Path) -> None:
    """The rest of an earlier key is not kept."""
    one = write(tmp_path, "1.yaml", **SHARED)
    two = write(tmp_path, "2.yaml", redis={"enabled": True, "port": 7}, server_name="other.org")
    found = read_homeserver([one, two])

    assert found.server_name == "other.org"
    assert found.redis is not None
    assert ("localhost", 7, None) == (found.redis.host, found.redis.port, found.redis.password)


def test_a_directory_means_its_yaml_files_in_order(tmp_path: Path) -> None:
    """Others are left out."""
    write(tmp_path, "b.yaml", server_name="b.org")
    write(tmp_path, "a.yaml", **SHARED)
    write(tmp_path, "c.yml", server_name="c.org")
    (tmp_path / "d.yaml").mkdir()

    assert read_homeserver([tmp_path]).server_name == "b.org"


def test_processes_are_those_of_files_and_of_names(tmp_path: Path) -> None:
    """`main` is the main process; a writer without a file is known by its name."""
    found = read(tmp_path, worker(tmp_path, "w1"))

    assert ["master", "w1", "w2"] == [one.name for one in found.processes]
    assert [True, True, False] == [bool(one.file) for one in found.processes]
    assert {"events": ("w1", "w2"), "typing": ("w1",)} == found.writers
    assert found.processes[0].host == "10.0.0.1"


def test_the_main_process_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    """Over the shared ones."""
    main = write(tmp_path, "main.yaml", worker_app="synapse.app.homeserver", listeners=[METRICS])
    found = read(tmp_path, main)

    assert found.processes[0].metrics == MetricsAddress("http://10.0.0.1:9100/_synapse/metrics")


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({"listeners": [METRICS]}, MetricsAddress("http://10.0.0.1:9100/_synapse/metrics")),
        (
            {"listeners": [METRICS | {"bind_addresses": ["::1", "127.0.0.1"]}]},
            MetricsAddress("http://[::1]:9100/_synapse/metrics", is_loopback=True),
        ),
        (
            {"listeners": [{"type": "metrics", "port": 9100, "bind_address": "10.0.0.9"}]},
            MetricsAddress("http://10.0.0.9:9100/_synapse/metrics"),
        ),
        (
            {
                "listeners": [
                    {"type": "http", "port": 8008, "resources": [{"names": ["client"]}]},
                    {"type": "http", "port": 8009, "tls": True, "resources": [{"names": ["x", "metrics"]}]},
                ]
            },
            MetricsAddress("https://10.0.0.1:8009/_synapse/metrics"),
        ),
        (
            {"listeners": [{"type": "http", "path": "/run/m.sock", "resources": [{"names": ["metrics"]}]}]},
            MetricsAddress("http://localhost/_synapse/metrics", "/run/m.sock", is_loopback=True),
        ),
        (
            {"metrics_port": 9101},
            MetricsAddress("http://127.0.0.1:9101/_synapse/metrics", is_loopback=True),
        ),
        (
            {"metrics_port": 9101, "listeners": [METRICS]},
            MetricsAddress("http://10.0.0.1:9100/_synapse/metrics"),
        ),
        ({"listeners": "nonsense"}, None),
        ({"listeners": [METRICS | {"port": "many"}, 5, None]}, None),
    ],
)
def test_metrics_are_found_in_every_form(
    tmp_path: Path, settings: dict[str, Any], address: MetricsAddress | None
) -> None:
    """What other machines reach comes first, if the process is on another."""
    assert address == read(tmp_path, **settings).processes[0].metrics


def test_metrics_that_are_switched_off_are_noted(tmp_path: Path) -> None:
    """Synapse listens, and shows nothing of use."""
    found = read(tmp_path, listeners=[METRICS], enable_metrics=False)

    assert found.processes[0].metrics is None
    assert "enable_metrics is not true in its files" in found.processes[0].unmeasured


def test_given_metrics_count_more(tmp_path: Path) -> None:
    """Also for a process that has no file."""
    file = write(tmp_path, "homeserver.yaml", **SHARED)
    found = read_homeserver([file], metrics={"w2": "http://w2:1/metrics"})

    assert found.process("w2").metrics == MetricsAddress("http://w2:1/metrics")  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="--metrics names w3, which is no process"):
        read_homeserver([file], metrics={"w3": "http://w3:1/metrics"})


def test_a_database_has_libpqs_parameters(tmp_path: Path) -> None:
    """Without those of the pool; `database` is an alias."""
    found = read(tmp_path).database

    assert found is not None
    assert found.parameters is not None
    assert {"user": "u", "password": "pw0rd", "dbname": "d"} == found.parameters.value


def test_of_several_databases_the_one_with_main_counts(tmp_path: Path) -> None:
    """A database without a list has all stores."""
    several = {
        "state": {"name": "psycopg2", "data_stores": ["state"], "args": {"dbname": "state"}},
        "master": {"name": "psycopg2", "data_stores": ["main"], "args": {"dbname": "main", "port": 5433}},
    }
    for main in (several["master"], {**several["master"], "data_stores": None}):
        found = read(tmp_path, databases={**several, "master": main}).database

        assert found is not None
        assert found.parameters is not None
        assert {"dbname": "main", "port": "5433"} == found.parameters.value


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (
            {"database": {"name": "sqlite3", "args": {"database": "/data/homeserver.db"}}},
            "/data/homeserver.db",
        ),
        ({"database": None, "database_path": "/data/old.db"}, "/data/old.db"),
        # Synapse ignores it beside `database`, with a warning.
        (
            {
                "database": {"name": "sqlite3", "args": {"database": "/data/homeserver.db"}},
                "database_path": "/data/old.db",
            },
            "/data/homeserver.db",
        ),
    ],
)
def test_both_forms_of_sqlite_are_read(tmp_path: Path, settings: dict[str, Any], path: str) -> None:
    """In both forms."""
    found = read(tmp_path, **settings).database

    assert found is not None
    assert path == found.path


def test_a_password_comes_from_a_file(tmp_path: Path) -> None:
    """One that cannot be read is noted, by its name."""
    (tmp_path / "secret").write_text("from a file\n")
    redis = {"enabled": True, "password_path": str(tmp_path / "secret")}
    found = read(tmp_path, redis=redis)
    missing = read(tmp_path, redis=redis | {"password_path": "/no/such"})

    assert found.redis is not None
    assert found.redis.password is not None
    assert found.redis.password.value == "from a file"
    assert "password_path: cannot read /no/such: No such file or directory" in missing.unread[0].why


def test_secrets_are_compared_and_never_shown(tmp_path: Path) -> None:
    """Also those of the database and of Redis."""
    found = read(tmp_path, worker(tmp_path, "w1"), worker(tmp_path, "w2", worker_replication_secret="other"))
    marks = [one.secret_mark for one in found.processes]

    assert marks[0] == marks[1] != marks[2]
    for secret in ("s3cret", "pa55", "pw0rd", "other"):
        assert secret not in repr(found)


def test_what_a_workers_file_replaces_counts_for_it(tmp_path: Path) -> None:
    """As `redis` without `enabled`."""
    found = read(tmp_path, worker(tmp_path, "w1", redis={"host": "redis"}))

    assert [True, False] == [one.has_redis for one in found.processes][:2]


def test_two_files_of_one_name(tmp_path: Path) -> None:
    """Both are told."""
    first, second = worker(tmp_path, "w1"), worker(tmp_path, "w1", "again.yaml")
    found = read(tmp_path, first, second)

    assert {"w1": (str(first), str(second))} == found.twice


@pytest.mark.parametrize(
    ("settings", "pushes", "notes"),
    [
        ({}, True, []),
        ({"start_pushers": "false"}, True, []),
        ({"start_pushers": False}, False, ["start_pushers"]),
        ({"start_pushers": False, "pusher_instances": ["w1"]}, True, []),
        ({"pusher_instances": []}, False, ["pusher_instances"]),
        ({"send_federation": False, "start_pushers": 0}, False, ["send_federation", "start_pushers"]),
    ],
)
def test_a_check_that_is_switched_off_is_noted(
    tmp_path: Path, settings: dict[str, Any], pushes: bool, notes: list[str]
) -> None:
    """By the list of processes, or by the older switch."""
    found = read(tmp_path, **settings)

    assert pushes is found.pushes
    off = [one.why for one in found.notes if one.kind == "check_switched_off"]
    assert notes == [why.split("`")[1] for why in off]


def test_appservices_have_the_ids_of_their_files(tmp_path: Path) -> None:
    """If one cannot be read, they are not known; that is noted."""
    bridge = write(tmp_path, "bridge.yaml", id="bridge", as_token="a-token")
    found = read(tmp_path, app_service_config_files=[str(bridge)])
    unread = read(tmp_path, app_service_config_files=[str(bridge), "/no/such.yaml"])

    assert (("bridge",), None) == (found.appservices, unread.appservices)
    assert "an application service: cannot read /no/such.yaml" in str(unread.notes)
    assert "a-token" not in repr(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1", "no server_name"),
        ("- a", "no server_name"),
        ("{", "not YAML"),
        ("server_name: 5", "no server_name"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, why: str) -> None:
    """One line says so."""
    path = tmp_path / "x.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=why) as caught:
        read_homeserver([path])
    assert str(path) in str(caught.value)


def test_a_worker_without_a_name(tmp_path: Path) -> None:
    """Its worker_app is its name."""
    found = read(tmp_path, write(tmp_path, "w.yaml", worker_app="synapse.app.generic_worker"))

    assert "synapse.app.generic_worker" in [one.name for one in found.processes]


def test_an_empty_directory(tmp_path: Path) -> None:
    """It says what to name."""
    with pytest.raises(ConfigError, match=r"has no \*.yaml file"):
        read_homeserver([tmp_path])


def test_nonsense_of_every_kind_does_no_harm(tmp_path: Path) -> None:
    """Wrong types count as absent."""
    keys = [
        "database",
        "databases",
        "redis",
        "instance_map",
        "stream_writers",
        "listeners",
        "app_service_config_files",
        "worker_replication_secret",
        "metrics_port",
    ]
    for value in (5, "x", [1, [2]], {"a": {"b": [3]}}, None, True):
        read(tmp_path, **dict.fromkeys(keys, value))
