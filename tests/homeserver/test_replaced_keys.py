"""``inspect --files``: keys that another file has again, that a release has not yet, or no more."""

from pathlib import Path
from typing import Any

import pytest

from tests.homeserver.test_files import PARTLY, UNWELL, WELL, WHOLE, run, write
from tests.homeserver.test_work import listener, one, worker

LISTENERS = {"listeners": [listener("client", "federation", port=8008)]}


def test_listeners_that_another_file_replaces(tmp_path: Path) -> None:
    """A folder with a metrics.yaml (wlphi/ess-docker-compose#31): nothing listens at 8008."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(
        folder,
        homeserver={"server_name": "x", **LISTENERS},
        metrics={"listeners": [{"type": "metrics", "port": 9000}]},
    )
    found = one(run("--homeserver", folder, code=UNWELL), "replaced_key")

    assert "`listeners` in" in found["why"]
    assert "metrics.yaml replaces that of" in found["why"]
    assert "8008" in found["why"]
    assert "one `listeners`" in found["remedy"]


def test_a_key_that_is_twice_in_one_file(tmp_path: Path) -> None:
    """YAML takes the last without a word."""
    (tmp_path / "homeserver.yaml").write_text(
        "server_name: x\nredis:\n  enabled: true\n  host: redis\nredis:\n  password: x\n"
    )
    found = run("--homeserver", tmp_path / "homeserver.yaml", code=UNWELL)

    replaced = one(found, "replaced_key")
    assert "is there twice" in replaced["why"]
    assert "enabled and host" in replaced["why"]
    assert "x" not in replaced["why"].replace("homeserver.yaml", "").split()


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ({"redis": {"enabled": True}}, {"redis": {"password": "x"}}, "findings"),
        ({"database": {"name": "psycopg2"}}, {"database": {"args": {"password": "x"}}}, "findings"),
        (LISTENERS, {"listeners": [listener("client", port=8448)]}, "notes"),
        ({"instance_map": {"a": {}}}, {"instance_map": {"b": {}}}, "notes"),
        ({"redis": {"enabled": True}}, {"redis": {"enabled": True, "password": "x"}}, ""),
        (LISTENERS, LISTENERS, ""),
    ],
)
def test_what_is_lost_and_what_is_meant(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], kind: str
) -> None:
    """What is lost is told; it is wrong if without it the key says nothing."""
    write(tmp_path, a={"server_name": "x", **first}, b=second)
    code = {"findings": UNWELL}.get(kind, WELL)
    files = "--homeserver", tmp_path / "a.yaml", "--homeserver", tmp_path / "b.yaml"
    result = run(*files, code=code if "instance_map" not in first else UNWELL)

    told = [where for where in ("findings", "notes") for n in result[where] if n["kind"] == "replaced_key"]
    assert [kind] * bool(kind) == told


@pytest.mark.parametrize(
    ("kind", "metrics"), [("http", "http://127.0.0.1:9101/_synapse/metrics"), ("metrics", None)]
)
def test_metrics_of_a_worker_that_are_switched_off(tmp_path: Path, kind: str, metrics: str | None) -> None:
    """By a listener of type http a worker shows them all the same (matrix-org/synapse#16222)."""
    at = listener("metrics", port=9101, kind=kind, bind_addresses=["127.0.0.1"])
    files = write(
        tmp_path, homeserver={**WHOLE, "enable_metrics": False}, w=worker("w1", listener("client"), at)
    )
    found = run(*files, code=WELL)
    assert metrics == next(one["metrics"] for one in found["processes"] if one["name"] == "w1")


@pytest.mark.parametrize(
    ("keys", "release", "said"),
    [
        ({"redis": {"enabled": True, "dbid": 3}}, "1.70", "`redis.dbid` is of 1.78 and newer"),
        ({"redis": {"enabled": True, "path": "/x"}}, "1.70", "`redis.path` is of 1.85 and newer"),
        ({"notify_appservices_from_worker": "w1"}, "1.58", "`notify_appservices_from_worker` is of 1.59"),
        ({"run_background_tasks_on": "w1"}, "1.20", "`run_background_tasks_on` is of 1.22"),
        ({"redis": {"enabled": True, "dbid": 3}}, "1.78", ""),
    ],
)
def test_a_key_that_the_release_has_not_yet(
    tmp_path: Path, keys: dict[str, Any], release: str, said: str
) -> None:
    files = write(
        tmp_path,
        homeserver={"server_name": "x", "redis": {"enabled": True}, **keys},
        w=worker("w1", listener("client"), **OLD),
    )
    found = run(*files, "--synapse", release, code=UNWELL if said else WELL)
    if said:
        assert said in one(found, "ignored_key")["why"]


OLD: dict[str, Any] = {"worker_replication_host": "synapse", "worker_replication_http_port": 9093}


def test_old_keys_are_told_once_with_the_whole_statement(tmp_path: Path) -> None:
    shared = {
        "server_name": "x",
        "redis": {"enabled": True},
        "listeners": [listener("replication", port=9093)],
    }
    found = run(*write(tmp_path, homeserver=shared, w=worker("w1", listener("client"), **OLD)), code=UNWELL)

    statement = "instance_map: {main: {host: synapse, port: 9093}}"
    old, no_main = one(found, "refused_key"), one(found, "no_main")
    assert "`worker_replication_host` and `worker_replication_http_port`" in old["why"]
    assert statement in old["remedy"]
    assert statement in no_main["remedy"]
    assert 2 == len(found["findings"])


@pytest.mark.parametrize(("bind", "host"), [("127.0.0.1", "localhost"), ("0.0.0.0", "HOST")])
def test_the_port_of_the_main_process_is_in_its_listener(tmp_path: Path, bind: str, host: str) -> None:
    shared = {
        "server_name": "x",
        "redis": {"enabled": True},
        "listeners": [listener("replication", port=9093, bind_addresses=[bind])],
    }
    found = run(*write(tmp_path, homeserver=shared, w=worker("w1", listener("client"))), code=UNWELL)
    assert f"instance_map: {{main: {{host: {host}, port: 9093}}}}" in one(found, "no_main")["remedy"]


@pytest.mark.parametrize("release", ["1.40", "1.85", "1.163"])
def test_a_port_by_old_keys_at_which_nothing_listens(tmp_path: Path, release: str) -> None:
    shared = {"server_name": "x", "redis": {"enabled": True}, **LISTENERS}
    files = write(tmp_path, homeserver=shared, w=worker("w1", listener("client"), **OLD))
    found = one(run(*files, "--synapse", release, code=UNWELL), "wrong_port")

    assert "`worker_replication_http_port` is 9093" in found["why"]
    assert "no listener with the resource replication" in found["why"]


@pytest.mark.parametrize(("port", "is_wrong"), [(9092, False), (9093, True)])
def test_a_port_of_tcp_at_which_http_listens(tmp_path: Path, port: int, is_wrong: bool) -> None:
    """(matrix-org/synapse#9185) With Redis it does not count."""
    shared = {
        "server_name": "x",
        "send_federation": False,
        "listeners": [listener("replication", port=9093), {"type": "replication", "port": 9092}],
    }
    own = worker("s1", app="federation_sender", **OLD, worker_replication_port=port)
    files = write(tmp_path, homeserver=shared, w=own)
    found = run(*files, "--synapse", "1.25", code=UNWELL if is_wrong else WELL)
    if is_wrong:
        assert "`worker_replication_port` is 9093" in one(found, "wrong_port")["why"]
        assert "9092" in one(found, "wrong_port")["remedy"]


@pytest.mark.parametrize(("listens", "calls"), [(True, False), (False, True)])
def test_tls_at_one_end(tmp_path: Path, listens: bool, calls: bool) -> None:
    """(matrix-org/synapse#15744)"""
    shared = {
        **WHOLE,
        "listeners": [listener("replication", port=9093, tls=listens)],
        "instance_map": {"main": {"host": "127.0.0.1", "port": 9093, "tls": calls}},
    }
    files = write(tmp_path, homeserver=shared, w=worker("w1", listener("client")))
    found = one(run(*files, code=UNWELL), "wrong_port")
    assert "TLS" in found["why"]
    assert f"tls: {str(listens).lower()}" in found["remedy"]


def test_workers_without_redis(tmp_path: Path) -> None:
    """What is missing stands before where it may be."""
    shared = {"server_name": "x", "instance_map": WHOLE["instance_map"]}
    found = run(*write(tmp_path, homeserver=shared, w=worker("w1", listener("client"))), code=PARTLY)
    [why] = [one["why"] for one in found["unseen"] if one["what"] == "Redis"]
    assert "workers hear of nothing" in why
    assert "redis: {enabled: true}" in why


def test_federation_that_nobody_sends(tmp_path: Path) -> None:
    shared = {**WHOLE, "send_federation": False}
    found = run(*write(tmp_path, homeserver=shared, w=worker("w1", listener("client"))), code=WELL)
    note = one(found, "check_switched_off", "notes")
    assert note["why"].startswith("no process that was given sends federation")
    assert "federation_sender_instances: [NAME]" in note["remedy"]


def test_two_settings_in_one_line(tmp_path: Path) -> None:
    """A script that joins texts without a line's end (matrix-org/synapse#9162, an early state)."""
    from click.testing import CliRunner

    from synrepl.cli import main

    (tmp_path / "a.yaml").write_text("server_name: x\nstart_pushers: falseupdate_user_directory: false\n")
    result = CliRunner().invoke(main, ["inspect", "--files", "--homeserver", str(tmp_path / "a.yaml")])
    assert 2 == result.exit_code
    assert "line 2" in result.output
    assert "two settings in one line" in result.output


def test_a_workers_key_where_there_is_no_worker(tmp_path: Path) -> None:
    """A guide sets it for more processes (a public capacity note); it does nothing."""
    shared = {"server_name": "x", "worker_replication_http_port": 9093}
    found = run(*write(tmp_path, homeserver=shared), code=WELL)
    assert "`worker_replication_http_port`" in one(found, "ignored_key", "notes")["why"]

    # With workers it is read by those.
    both = run(*write(tmp_path, homeserver={**WHOLE, **OLD}, w=worker("w1", listener("client"))), code=UNWELL)
    assert [] == [note for note in both["notes"] if note["kind"] == "ignored_key"]


@pytest.mark.parametrize(
    ("app", "serves", "has_redis", "release", "where"),
    [
        ("generic_worker", ["client"], True, "1.40", "findings"),
        ("federation_sender", [], True, "1.40", "findings"),
        ("pusher", [], True, "1.25", "findings"),
        # It sends what it hears, and what it has sent it says, over TCP.
        ("federation_sender", [], False, "1.25", "notes"),
        ("generic_worker", [], True, "1.40", "notes"),
        ("federation_sender", [], True, "1.84", ""),
    ],
)
def test_a_worker_without_a_port_of_the_main_process(
    tmp_path: Path, app: str, serves: list[str], has_redis: bool, release: str, where: str
) -> None:
    """(matrix-org/synapse#9185 has it as the port of TCP)"""
    shared: dict[str, Any] = {
        "server_name": "x",
        "redis": {"enabled": has_redis},
        "start_pushers": False,
        "send_federation": False,
        "listeners": [listener("replication", port=9093)],
    }
    if not has_redis:
        shared["listeners"] += [{"type": "replication", "port": 9092}]
    own = worker("s1", *[listener(name) for name in serves], app=app, worker_replication_host="127.0.0.1")
    found = run(
        *write(tmp_path, homeserver=shared, s=own),
        "--synapse",
        release,
        code=UNWELL if where == "findings" else WELL,
    )
    told = [at for at in ("findings", "notes") for n in found[at] if n["kind"] == "no_main_port"]
    assert [where] * bool(where) == told
    if where:
        assert "worker_replication_http_port" in one(found, "no_main_port", where)["why"]
        assert "`worker_replication_http_port: 9093`" in one(found, "no_main_port", where)["remedy"]


def test_a_worker_without_a_name_may_be_started_once(tmp_path: Path) -> None:
    """(matrix-org/synapse#13555: four containers of one file)"""
    files = write(tmp_path, homeserver=WHOLE, w={"worker_app": "synapse.app.generic_worker"})
    note = one(run(*files, code=WELL), "no_name", "notes")
    assert "no `worker_name`" in note["why"]
    assert "one name" in note["why"]


def test_a_name_that_is_not_known_is_not_there_twice(tmp_path: Path) -> None:
    """Each pod fills in its own."""
    own = {key: worker("${POD_NAME}", listener("client")) for key in ("a", "b")}
    assert [] == run(*write(tmp_path, homeserver=WHOLE, **own), code=PARTLY)["findings"]
