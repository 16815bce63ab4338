"""``inspect --files``: listeners of a process: the ports at which others look for it, and who holds them."""

from pathlib import Path
from typing import Any

import pytest

from tests.homeserver.test_files import UNWELL, WELL, WHOLE, kinds, run, write
from tests.homeserver.test_work import listener, one, worker

MAIN = {"host": "synapse", "port": 8008}


@pytest.mark.parametrize("where", [{"port": 8009}, {"path": "/run/w1.sock", "port": None}])
def test_a_port_that_another_listener_of_the_process_holds(tmp_path: Path, where: dict[str, Any]) -> None:
    """A guide leads `instance_map` to the port of clients: a second listener would not start there."""
    held = {key: value for key, value in {**listener("client"), **where}.items() if value is not None}
    address = {"host": "w1", "port": 8009} if "path" not in where else {"path": where["path"]}
    shared = {**WHOLE, "instance_map": {**WHOLE["instance_map"], "w1": address}}
    files = write(tmp_path, homeserver=shared, w1=worker("w1", held))

    found = one(run(*files, code=UNWELL), "wrong_port")

    at = where.get("path") or where["port"]
    assert (
        f"add `replication` to the resources of the listener at {at} in {files[-1]}, if no outsider reaches"
        in found["remedy"]
    )
    assert "or give replication a listener of its own, and set it at instance_map.w1" in found["remedy"]


def test_the_port_of_clients_in_place_of_that_of_the_main_process(tmp_path: Path) -> None:
    shared = {**WHOLE, "instance_map": {"main": MAIN}, "listeners": [listener("client", port=8008)]}
    found = one(run(*write(tmp_path, homeserver=shared), code=UNWELL), "wrong_port")

    assert "the listener at 8008" in found["remedy"]
    assert "instance_map.main" in found["remedy"]


def test_what_is_not_of_type_http_takes_no_resource(tmp_path: Path) -> None:
    """The port of metrics."""
    metrics = {"type": "metrics", "port": 8008}
    shared = {**WHOLE, "instance_map": {"main": MAIN}, "listeners": [metrics]}
    found = one(run(*write(tmp_path, homeserver=shared), code=UNWELL), "wrong_port")

    assert "to the resources" not in found["remedy"]
    assert "give replication a listener of its own" in found["remedy"]
    assert "8008" not in found["remedy"]


@pytest.mark.parametrize(
    ("key", "release", "adds"),
    [("worker_replication_http_port", "1.50", True), ("worker_replication_port", "1.12", False)],
)
def test_an_older_key_with_the_port_of_clients(tmp_path: Path, key: str, release: str, adds: bool) -> None:
    """Replication over TCP has a listener of its own type, which takes no resource."""
    shared = {"server_name": "x", "listeners": [listener("client", port=8008)]}
    old: dict[str, Any] = {
        "worker_replication_host": "synapse",
        "worker_replication_http_port": 8008,
        key: 8008,
    }
    if not adds:
        del old["worker_replication_http_port"]
    files = write(tmp_path, homeserver=shared, w1=worker("w1", **old))

    found = one(run(*files, "--synapse", release, code=UNWELL), "wrong_port")

    assert adds == ("add `replication` to the resources of the listener at 8008" in found["remedy"])
    assert f"of its own, and set `{key}` to its port" in found["remedy"]
    assert "port: 8008" not in found["remedy"]


@pytest.mark.parametrize(
    ("first", "second", "is_found"),
    [
        ({}, {}, True),
        ({"bind_addresses": ["127.0.0.1"]}, {"bind_addresses": ["0.0.0.0"]}, True),
        ({"bind_addresses": ["127.0.0.1"]}, {"bind_addresses": ["::1"]}, False),
        ({}, {"port": 8010}, False),
        # Both at no port: they have paths.
        ({"path": "/a", "port": 0}, {"path": "/b", "port": 0}, False),
    ],
)
def test_two_listeners_of_one_process_at_one_port(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], is_found: bool
) -> None:
    """Whatever the hosts are: it is one process."""
    shared = {**WHOLE, "instance_map": {"main": {"host": "synapse", "port": 9093}}}
    own = [listener("client", **{"port": 8009, **first}), listener("media", **{"port": 8009, **second})]
    files = write(tmp_path, homeserver=shared, w1=worker("w1", *own))

    found = run(*files, code=UNWELL if is_found else WELL)

    assert ([("port_twice", "w1")] if is_found else []) == kinds(found)
    if is_found:
        assert f"{files[-1]} has two listeners of w1 at 8009" in one(found, "port_twice")["why"]
        assert "into one" in one(found, "port_twice")["remedy"]


# -- none ----------------------------------------------------------------------------------------------------


def note(found: dict[str, Any], kind: str) -> dict[str, Any]:
    """The one note of this kind."""
    noted: list[dict[str, Any]] = [one for one in found["notes"] if one["kind"] == kind]
    assert len(noted) == 1
    return noted[0]


@pytest.mark.parametrize(("listeners", "code"), [(None, WELL), ([], UNWELL)])
def test_a_main_process_without_listeners(tmp_path: Path, listeners: Any, code: int) -> None:
    """A generator of manifests has `port: 8008` at the top, which is no setting. It starts, and is deaf."""
    shared = {**WHOLE, "port": 8008} | ({} if listeners is None else {"listeners": listeners})
    alone = note(run(*write(tmp_path, homeserver=shared), code=code), "no_listeners")
    files = write(tmp_path, homeserver=shared, w1=worker("w1", listener("client")))
    found = note(run(*files, code=code), "no_listeners")

    assert "master" == alone["process"] == found["process"]
    assert f"{files[1]} has no `listeners`" in found["why"]
    assert "client and federation" in alone["remedy"]
    assert "replication" not in alone["remedy"]
    assert "replication at 9093, as instance_map.main has it" in found["remedy"]


def test_a_port_by_an_older_key_is_a_listener(tmp_path: Path) -> None:
    assert [] == kinds(run(*write(tmp_path, homeserver={**WHOLE, "bind_port": 8448}), code=WELL))


@pytest.mark.parametrize("listeners", [None, [listener("client", port=8008)], [listener("replication")]])
def test_the_cure_of_a_missing_main_has_the_listener_too(tmp_path: Path, listeners: Any) -> None:
    shared = {"server_name": "x", "redis": {"enabled": True}} | (
        {"listeners": listeners} if listeners else {}
    )
    files = write(tmp_path, homeserver=shared, w1=worker("w1", listener("client")))
    found = one(run(*files, code=UNWELL), "no_main")

    is_there = listeners == [listener("replication")]
    assert is_there != (f"add to `listeners` in {files[1]} one of type http" in found["remedy"])
    # Who gives the main process a listener has to restart it as well.
    assert is_there != ("and of the main process" in found["cost"])


@pytest.mark.parametrize("resource", ["client", "replication", "${RESOURCE}"])
def test_a_worker_in_the_file_of_the_main_process(tmp_path: Path, resource: str) -> None:
    """The main process does not start with it: that is found, and where others are to reach that process."""
    keys = {"worker_replication_host": "127.0.0.1", "worker_replication_http_port": 9093}
    own = {"worker_app": "synapse.app.generic_worker", "worker_listeners": [listener("client", port=8081)]}
    shared = {"server_name": "x", "redis": {"enabled": True}, "listeners": [listener(resource)]}
    files = write(tmp_path, homeserver={**shared, **own, **keys})
    found = run(*files, code=UNWELL)
    refused = one(found, "refused_at_start")

    assert ("master", True) == (refused["process"], "from 1.49 on" in refused["why"])
    assert f"{files[1]} has a `worker_app`" in refused["why"]
    assert "remove `worker_app`, `worker_replication_host`" in refused["remedy"]
    assert [] == [lost for lost in found["unseen"] if lost["what"] == "master"]
    for kind in ("no_main", "refused_key"):
        remedy = one(found, kind)["remedy"]
        assert "port: 9093" in remedy
        added = f"add to `listeners` in {files[1]} one of type http with the resource replication, at that"
        assert (resource == "client") == (added in remedy)
    whole = run(*files, *write(tmp_path, main=shared), code=UNWELL)
    assert "refused_at_start" not in {each["kind"] for each in whole["findings"]}


@pytest.mark.parametrize(
    ("key", "value", "is_found"),
    [
        ("worker_list", [{"worker_name": "w1", "worker_type": "generic_worker"}], True),
        ("workers", {"w1": {"port": 8083}}, True),
        ("workers", ["w1"], True),
        ("generic_workers", [{"name": "w1"}], True),
        ("pods", [{"worker_name": "w1"}], True),
        ("workers", [], False),
        ("x-workers", {"w1": {"worker_app": "y"}}, False),
        ("modules", [{"module": "a.b", "config": {"worker_x": 1}}], False),
    ],
)
def test_a_list_of_workers_is_no_setting(tmp_path: Path, key: str, value: Any, is_found: bool) -> None:
    """It starts none. No setting is meant by it."""
    files = write(tmp_path, homeserver={**WHOLE, key: value})
    found = run(*files, code=UNWELL if is_found else WELL)

    assert ([("misspelled_key", "")] if is_found else []) == kinds(found)
    if is_found:
        assert f"`{key}` in {files[1]} is no setting" in found["findings"][0]["why"]
        assert "did you mean" not in str(found)


@pytest.mark.parametrize(
    ("host", "port", "listens", "is_wrong"),
    [
        # A Service leads its port 80 to the pod's 9093.
        ("synapse.matrix.svc", 80, 9093, False),
        ("synapse.matrix.svc", 9093, 9093, None),
        ("localhost", 80, 9093, True),
        # What listens there is another listener of the same process.
        ("synapse.matrix.svc", 8008, 9093, True),
        ("synapse.matrix.svc", 80, None, True),
    ],
)
@pytest.mark.parametrize("release", ["1.50", "1.163"])
def test_a_port_that_something_else_may_map(
    tmp_path: Path, host: str, port: int, listens: int | None, is_wrong: bool | None, release: str
) -> None:
    """A Service of Kubernetes, or Docker: from the files alone it is not wrong."""
    shared = {
        "server_name": "x",
        "redis": {"enabled": True},
        "listeners": [
            listener("client", port=8008),
            *([listener("replication", port=listens)] if listens else []),
        ],
    }
    own = worker("w1", listener("client"))
    if release == "1.163":
        shared["instance_map"] = {"main": {"host": host, "port": port}}
    else:
        own |= {"worker_replication_host": host, "worker_replication_http_port": port}
    files = write(tmp_path, homeserver=shared, w1=own)
    found = run(*files, "--synapse", release, code=UNWELL if is_wrong else WELL)

    for where, is_there in (("findings", is_wrong is True), ("notes", is_wrong is False)):
        assert is_there == any(one["kind"] == "wrong_port" for one in found[where])
    if is_wrong is False:
        told = note(found, "wrong_port")
        assert told["remedy"].startswith("nothing, if a proxy, a Service or Docker leads it")
        assert "fail" not in told["why"]


@pytest.mark.parametrize(
    ("path", "where"),
    [("/run/synapse//main.sock", None), ("/sockets/main.sock", "notes")],
)
def test_a_socket_by_another_path(tmp_path: Path, path: str, where: str | None) -> None:
    """A container may have its folder elsewhere."""
    shared = {
        **WHOLE,
        "instance_map": {"main": {"path": path}},
        "listeners": [
            {"path": "/run/synapse/main.sock", "type": "http", "resources": [{"names": ["replication"]}]}
        ],
    }
    found = run(*write(tmp_path, homeserver=shared, w1=worker("w1", listener("client"))), code=WELL)

    assert bool(where) == any(one["kind"] == "wrong_port" for one in found["notes"])


def test_each_process_goes_by_its_own_map(tmp_path: Path) -> None:
    """One in a worker's own file replaces the shared one."""
    entries = {"main": {"host": "localhost", "port": 9093}, "w1": {"host": "localhost", "port": 9094}}
    own = {"main": {"host": "localhost", "port": 9999}, "w1": {"host": "localhost", "port": 9998}}
    shared = {**WHOLE, "instance_map": entries, "listeners": [listener("replication", port=9093)]}
    w1 = worker("w1", listener("replication", port=9094), listener("client"))
    files = write(
        tmp_path, homeserver=shared, w1=w1, w2=worker("w2", listener("client", port=8084), instance_map=own)
    )
    found = run(*files, code=UNWELL)

    assert [("wrong_port", "master"), ("wrong_port", "w1")] == kinds(found)
    assert all("w2.yaml has 999" in one["why"] for one in found["findings"])
    assert all(one["remedy"].endswith("w2.yaml") for one in found["findings"])


SOCKET = {"path": "/run/x.sock", "type": "http", "resources": [{"names": ["client"]}]}


@pytest.mark.parametrize(
    ("keys", "at"),
    [
        ({"listeners": [SOCKET, {**SOCKET, "path": "/run//x.sock"}]}, "/run/x.sock"),
        ({"listeners": [SOCKET, {**SOCKET, "path": "/run/y.sock"}]}, None),
        (
            {"listeners": [listener("client", port=9000)], "enable_metrics": True, "metrics_port": 9000},
            "9000",
        ),
        ({"listeners": [listener("client", port=9000)], "metrics_port": 9000}, "9000"),
        ({"listeners": [listener("client", port=9000)], "metrics_port": 9001}, None),
        ({"listeners": [listener("client", port=9000)], "manhole": 9000}, "9000"),
        ({"listeners": [listener("client", port=9000)], "manhole": 9001}, None),
    ],
)
def test_two_listeners_at_one_place(tmp_path: Path, keys: dict[str, Any], at: str | None) -> None:
    """Sockets have paths, and metrics and the manhole have ports by older keys."""
    found = run(*write(tmp_path, homeserver={"server_name": "x", **keys}), code=UNWELL if at else WELL)

    assert [("port_twice", "master")] * bool(at) == kinds(found)
    assert all(f"two listeners of master at {at}:" in one["why"] for one in found["findings"])


@pytest.mark.parametrize(
    ("keys", "is_noted"),
    [({}, True), ({"database": {"name": "sqlite3"}}, False), ({"database_path": "/x.db"}, False)],
)
def test_files_without_a_database(tmp_path: Path, keys: dict[str, Any], is_noted: bool) -> None:
    """Synapse does not start with them, unless -d names one: that is not in the files."""
    found = run(*write(tmp_path, homeserver={"server_name": "x", **keys}), code=WELL)

    assert is_noted == any(one["kind"] == "no_database" for one in found["notes"])
