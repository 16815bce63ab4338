"""``inspect --files``: hosts that are none (matrix-org/synapse#9422)."""

from pathlib import Path
from typing import Any

import pytest

from synrepl.homeserver.host_names import fault_of
from tests.homeserver.test_files import UNWELL, WELL, WHOLE, run, write
from tests.homeserver.test_work import listener, one, worker

SOCKET = "/run/redis.sock"
PASSWORD = "abc123"


@pytest.mark.parametrize(
    ("host", "fault"),
    [
        ("redis", ""),
        ("matrix-redis.example.org.", ""),
        ("10.0.0.1", ""),
        ("::1", ""),
        ("fe80::1%eth0", ""),
        (SOCKET, "is the path of a socket"),
        ("unix:///run/redis.sock", "is the path of a socket"),
        ("redis://redis:6379/0", "is a URL"),
        ("redis:6379", "has a port in it"),
        ("[::1]", "has brackets"),
        ("me@redis", "has a user in it"),
        ("redis/0", "has a path in it"),
        ("redis host", "has a blank in it"),
        ("matrix_redis", "has an underscore, which Twisted refuses in the name of a host"),
        ("redis ", "has a blank in it"),
        (" ", "is empty"),
        ("", "is empty"),
        (None, "is empty"),
        (5, "is no text"),
        ([], "is no text"),
    ],
)
def test_what_is_no_host(host: Any, fault: str) -> None:
    assert fault == fault_of(host)


@pytest.mark.parametrize(
    ("host", "release", "cure"),
    [
        (
            SOCKET,
            "",
            "`path: /run/redis.sock` in `redis`, which is of 1.85 and newer; older releases: set `host`",
        ),
        (
            SOCKET,
            "1.27",
            "set `host` and `port` in `redis`, at which Redis listens: 1.27 reaches it by TCP alone",
        ),
        (SOCKET, "1.85", "remove `host`, and set `path: /run/redis.sock` in `redis`;"),
        ("redis:6380", "", "write `host: redis` and `port: 6380` in `redis`;"),
        (
            f"rediss://:{PASSWORD}@redis:6380/0",
            "",
            "`host: redis` and `port: 6380` in `redis`, and `use_tls: true`",
        ),
        ("matrix_redis", "", "a name without an underscore"),
        ("[::1]:6379", "", "`host: ::1` and `port: 6379`"),
        ("", "", "`host: HOST`"),
        (None, "", "`host: HOST`"),
    ],
)
def test_a_redis_whose_host_is_none(tmp_path: Path, host: Any, release: str, cure: str) -> None:
    files = write(tmp_path, homeserver={"server_name": "x", "redis": {"enabled": True, "host": host}})
    result = run(*files, *(["--synapse", release] if release else []), code=UNWELL)
    found = one(result, "wrong_host")

    assert "no process connects to Redis" in found["why"]
    assert cure in found["remedy"]
    assert "without workers Synapse needs no Redis" in found["remedy"]
    assert PASSWORD not in str(result)


@pytest.mark.parametrize(
    ("redis", "release"),
    [
        ({"enabled": False, "host": SOCKET}, "1.100"),
        ({"enabled": True, "host": SOCKET, "path": SOCKET}, "1.100"),
        ({"enabled": True, "path": SOCKET}, "1.100"),
    ],
)
def test_a_host_that_does_not_count(tmp_path: Path, redis: dict[str, Any], release: str) -> None:
    files = write(tmp_path, homeserver={"server_name": "x", "redis": redis})
    assert [] == run(*files, "--synapse", release, code=WELL)["findings"]


@pytest.mark.parametrize(
    ("host", "release", "cure"),
    [
        ("http://localhost:9093/", "1.100", "write `host: localhost` and `port: 9093` at instance_map.main"),
        ("https://hs", "1.100", "write `host: hs` at instance_map.main, and `tls: true`"),
        ("/run/main.sock", "1.100", "write `{path: /run/main.sock}` at instance_map.main"),
        ("/run/main.sock", "1.86", "set host and port at instance_map.main"),
    ],
)
def test_a_process_whose_host_is_none(tmp_path: Path, host: str, release: str, cure: str) -> None:
    shared = {**WHOLE, "instance_map": {"main": {"host": host, "port": 9093}}}
    files = write(tmp_path, homeserver=shared, w=worker("w1", listener("client")))
    found = one(run(*files, "--synapse", release, code=UNWELL), "wrong_host")

    assert f"`instance_map.main.host: {host}` in {tmp_path}/homeserver.yaml" in found["why"]
    assert cure in found["remedy"]


def test_a_main_process_whose_host_is_none(tmp_path: Path) -> None:
    """By the key of older releases; newer ones refuse it whatever it says."""
    shared = {
        "server_name": "x",
        "redis": {"enabled": True},
        "listeners": [listener("client", "replication", port=9093)],
    }
    old: dict[str, Any] = {"worker_replication_host": "http://hs:9093", "worker_replication_http_port": 9093}
    files = write(tmp_path, homeserver=shared, w=worker("w1", listener("client"), **old))
    found = one(run(*files, "--synapse", "1.60", code=UNWELL), "wrong_host")

    assert "w1" == found["process"]
    assert "`worker_replication_host: hs` and `worker_replication_http_port: 9093`" in found["remedy"]
    newer = run(*files, "--synapse", "1.100", code=UNWELL)
    assert "wrong_host" not in [one["kind"] for one in newer["findings"]]


@pytest.mark.parametrize(
    ("host", "cure"),
    [
        ("postgresql://db:5432/synapse", "write `host: db` and `port: 5432` in `args`"),
        ("db:5432", "write `host: db` and `port: 5432` in `args`"),
        ("/run/postgresql/.s.PGSQL.5433", "write `host: /run/postgresql` and `port: 5433` in `args`"),
        ("/run/postgresql", ""),
        ("db1,db2", ""),
        ("matrix_db", ""),
        ("", ""),
        ("@abstract", ""),
        ("::1", ""),
    ],
)
def test_a_database_whose_host_is_none(tmp_path: Path, host: str, cure: str) -> None:
    """libpq takes the folder of a socket for a host, and several hosts."""
    database = {"name": "psycopg2", "args": {"host": host, "user": "s", "dbname": "s"}}
    result = run(
        *write(tmp_path, homeserver={"server_name": "x", "database": database}), code=UNWELL if cure else WELL
    )
    assert [cure] * bool(cure) == [found["remedy"] for found in result["findings"]]
