"""``inspect --files``: work that nobody does, that several do, and processes that do nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from synrepl.cli import main
from tests.homeserver.test_files import UNWELL, WELL, WHOLE, WORKER, kinds, run, write


def listener(*names: str, port: int = 8083, kind: str = "http", **more: Any) -> dict[str, Any]:
    """A listener with these resources."""
    return {"type": kind, "port": port, "resources": [{"names": list(names)}], **more}


def worker(name: str, *listeners: dict[str, Any], app: str = "generic_worker", **keys: Any) -> dict[str, Any]:
    """The file of a worker."""
    return {
        "worker_app": f"synapse.app.{app}",
        "worker_name": name,
        "worker_listeners": list(listeners),
        **keys,
    }


def one(found: dict[str, Any], kind: str, where: str = "findings") -> dict[str, Any]:
    """The only finding, or note, of this kind."""
    [found_one] = [one for one in found[where] if one["kind"] == kind]
    return dict(found_one)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("federation_sender1", "federation_sender_instances: [federation_sender1]"),
        ("matrix-synapse-worker-pusher-0", "pusher_instances: [matrix-synapse-worker-pusher-0]"),
        ("event_persister1", "stream_writers: {events: event_persister1}"),
        ("typing_stream_writer", "stream_writers: {typing: typing_stream_writer}"),
        ("background_worker", "run_background_tasks_on: background_worker"),
        ("user_dir1", "update_user_directory_from_worker: user_dir1"),
    ],
)
def test_a_worker_named_for_work_that_no_key_leaves_to_it(tmp_path: Path, name: str, cure: str) -> None:
    """As NixOS' module writes it, when only `workers` is set: it starts, and does nothing."""
    files = write(tmp_path, homeserver=WHOLE, w=worker(name, listener("replication")))
    found = one(run(*files, code=UNWELL), "does_nothing")

    assert name == found["process"]
    assert "no key leaves it" in found["why"]
    assert cure in found["remedy"]
    assert "instance_map" in found["remedy"] or "stream_writers" not in cure


def test_the_cure_keeps_the_writers_that_are_there(tmp_path: Path) -> None:
    """A playbook named one of four (spantaleev/matrix-docker-ansible-deploy#2224)."""
    names = [f"stream-writer-{number}-events" for number in range(3)]
    ports = {name: {"host": "localhost", "port": 9100 + at} for at, name in enumerate(names)}
    shared = {
        **WHOLE,
        "instance_map": {**WHOLE["instance_map"], **ports},
        "stream_writers": {"events": [names[2]]},
    }
    own = {f"w{at}": worker(name, listener("replication", port=9100 + at)) for at, name in enumerate(names)}
    found = one(run(*write(tmp_path, homeserver=shared, **own), code=UNWELL), "does_nothing")

    assert 2 == found["count"]
    assert f"stream_writers: {{events: [{names[2]}, {names[0]}, {names[1]}]}}" in found["remedy"]


@pytest.mark.parametrize(("release", "app"), [("1.18", "federation_sender"), ("1.40", "pusher")])
def test_an_older_release_knows_work_by_the_app(tmp_path: Path, release: str, app: str) -> None:
    """(matrix-org/synapse#8015: started as a generic worker)"""
    shared = {"server_name": "x", "redis": {"enabled": True}, "send_federation": False}
    files = write(tmp_path, homeserver=shared, w=worker(f"{app}1"))
    found = one(run(*files, "--synapse", release, code=UNWELL), "does_nothing")

    if release == "1.18":
        assert "worker_app: synapse.app.federation_sender" in found["remedy"]
        assert "send_federation" not in found["remedy"]  # it is false already
    else:
        assert "pusher_instances: [pusher1]" in found["remedy"]


def test_a_worker_of_which_nothing_is_known_is_noted(tmp_path: Path) -> None:
    """It may be a file that was shortened. What serves requests, or talks to other servers, has work."""
    found = run(*write(tmp_path, homeserver=WHOLE, w1=WORKER), code=WELL)
    assert "w1" == one(found, "does_nothing", "notes")["process"]

    serves = run(
        *write(tmp_path, homeserver=WHOLE, w=worker("federation_sender1", listener("client"))), code=WELL
    )
    assert [] == [one for one in serves["notes"] if one["kind"] == "does_nothing"]


@pytest.mark.parametrize("release", ["1.25", "1.66", "1.163"])
def test_two_senders_that_share_nothing(tmp_path: Path, release: str) -> None:
    """Each sends everything (spantaleev/matrix-docker-ansible-deploy#931)."""
    shared = {**WHOLE, "send_federation": False}
    port = {} if release == "1.163" else {"worker_replication_http_port": 9093}
    own = {f"s{at}": worker(f"sender-{at}", app="federation_sender", **port) for at in (0, 1)}
    found = one(
        run(*write(tmp_path, homeserver=shared, **own), "--synapse", release, code=UNWELL), "done_twice"
    )

    assert "each of sender-0 and sender-1 sends federation" in found["why"]
    assert "federation_sender_instances: [sender-0, sender-1]" in found["remedy"]

    shared["federation_sender_instances"] = ["sender-0", "sender-1"]
    assert [] == kinds(run(*write(tmp_path, homeserver=shared, **own), "--synapse", release, code=WELL))


def test_a_name_that_is_spelled_otherwise_is_the_cause(tmp_path: Path) -> None:
    """Then it is told which name nobody has, and no other key is proposed."""
    shared = {**WHOLE, "federation_sender_instances": ["federation-sender-1"]}
    found = run(*write(tmp_path, homeserver=shared, w=worker("federation_sender1")), code=UNWELL)
    assert [("unknown_process", "federation-sender-1")] == kinds(found)


def test_a_sender_that_does_not_start_sends_nothing_twice(tmp_path: Path) -> None:
    found = run(*write(tmp_path, homeserver=WHOLE, s=worker("s1", app="federation_sender")), code=UNWELL)
    assert [("refused_key", "s1")] == kinds(found)


def test_a_process_for_background_jobs_of_media_serves_none(tmp_path: Path) -> None:
    """(code-tool/matrix-stack) Another one serves media."""
    shared = {
        **WHOLE,
        "enable_media_repo": False,
        "media_instance_running_background_jobs": "jobs",
    }
    own = {
        "a": worker("jobs", app="media_repository"),
        "b": worker("media1", listener("media"), app="media_repository"),
    }
    assert [] == run(*write(tmp_path, homeserver=shared, **own), code=WELL)["findings"]


def test_background_jobs_of_media_in_two_processes(tmp_path: Path) -> None:
    """A note: nothing is lost by it."""
    shared = {**WHOLE, "listeners": [listener("client", "replication", port=9093)]}
    media = worker("media_repo", listener("media", "client"))
    found = one(run(*write(tmp_path, homeserver=shared, m=media), code=WELL), "media_jobs_twice", "notes")
    assert "master and media_repo" in found["why"]
    assert "media_instance_running_background_jobs" in found["remedy"]


@pytest.mark.parametrize(
    ("shared", "own", "said"),
    [
        # matrix-org/synapse#6518: the manual said client.
        (
            {"enable_media_repo": False},
            worker("m1", listener("client"), app="media_repository"),
            "no listener",
        ),
        ({"enable_media_repo": False}, worker("w1", listener("client", "media")), "enable_media_repo: true"),
    ],
)
def test_media_that_is_not_served(
    tmp_path: Path, shared: dict[str, Any], own: dict[str, Any], said: str
) -> None:
    files = write(tmp_path, homeserver={**WHOLE, **shared}, w=own)
    found = one(run(*files, code=UNWELL), "media_not_served")
    assert own["worker_name"] == found["process"]
    assert said in found["why"] + found["remedy"]


@pytest.mark.parametrize(
    ("release", "resources", "lacks"),
    [
        ("1.110", ["media"], []),
        ("1.111", ["media"], ["client", "federation"]),
        ("1.113", ["media", "client"], ["federation"]),
        ("1.113", ["media", "client", "federation"], []),
        ("1.114", ["media"], []),
    ],
)
def test_media_whose_endpoints_are_in_other_resources(
    tmp_path: Path, release: str, resources: list[str], lacks: list[str]
) -> None:
    """The main process has these resources, and not the repository."""
    shared = {
        **WHOLE,
        "enable_media_repo": False,
        "listeners": [listener("client", "federation", "replication", port=9093)],
    }
    media = worker("media1", listener(*resources), app="media_repository")
    files = write(tmp_path, homeserver=shared, m=media)
    if not lacks:
        assert [] == kinds(run(*files, "--synapse", release, code=WELL))
        return
    found = one(run(*files, "--synapse", release, code=UNWELL), "media_not_served")
    assert "media1" == found["process"]
    assert all(f"/_matrix/{name}/v1/media" in found["why"] for name in lacks)
    assert f"add {' and '.join(lacks)} to the resources" in found["remedy"]

    shared["enable_media_repo"] = True
    files = write(tmp_path, homeserver=shared, m=media)
    assert [] == kinds(run(*files, "--synapse", release, code=WELL))


def test_media_of_another_program_is_noted(tmp_path: Path) -> None:
    files = write(
        tmp_path, homeserver={**WHOLE, "enable_media_repo": False}, w=worker("w1", listener("client"))
    )
    assert "enable_media_repo" in one(run(*files, code=WELL), "media_not_served", "notes")["why"]


@pytest.mark.parametrize(
    ("shared", "app", "work", "cure"),
    [
        ({"send_federation": False}, "federation_sender", "sends federation", "federation_sender_instances"),
        (
            {"federation_sender_instances": ["s"]},
            "generic_worker",
            "sends federation",
            "federation_sender_instances",
        ),
        ({"run_background_tasks_on": "s"}, "generic_worker", "background tasks", "run_background_tasks_on"),
    ],
)
def test_processes_of_one_name_do_its_work_each(
    tmp_path: Path, shared: dict[str, Any], app: str, work: str, cure: str
) -> None:
    """A playbook gave both senders one name (spantaleev/matrix-docker-ansible-deploy#931)."""
    files = write(tmp_path, homeserver={**WHOLE, **shared}, a=worker("s", app=app), b=worker("s", app=app))
    found = run(*files, code=UNWELL)

    assert [("done_twice", ""), ("name_twice", "s")] == kinds(found)
    told = one(found, "done_twice")
    assert 2 == told["count"]
    assert f"each of s ({files[3]}) and s ({files[5]})" in told["why"]
    assert work in told["why"]
    assert told["remedy"].startswith("give each worker a worker_name of its own, and ")
    assert f"`{cure}`" in told["remedy"]


def test_of_one_name_only_who_has_the_work_does_it(tmp_path: Path) -> None:
    """The other is of another kind, which sends nothing."""
    shared = {**WHOLE, "send_federation": False}
    own = {"a": worker("s", app="federation_sender"), "b": worker("s", listener("client"))}
    assert [("name_twice", "s")] == kinds(run(*write(tmp_path, homeserver=shared, **own), code=UNWELL))


def test_a_third_of_another_name_is_counted_too(tmp_path: Path) -> None:
    shared = {**WHOLE, "send_federation": False}
    own = {key: worker("s" if key < "c" else "t", app="federation_sender") for key in "abc"}
    told = one(run(*write(tmp_path, homeserver=shared, **own), code=UNWELL), "done_twice")
    assert 3 == told["count"]


@pytest.mark.parametrize(
    ("key", "listeners", "is_wrong"),
    [
        ("typing", [listener("replication", port=9100)], True),
        ("receipts", [listener("replication", port=9100), listener("federation")], True),
        ("to_device", [listener("replication", port=9100)], True),
        ("typing", [listener("replication", port=9100), listener("client")], False),
        ("typing", [listener("replication", "client", port=9100)], False),
        # Other processes ask these for what clients send.
        ("events", [listener("replication", port=9100)], False),
        ("account_data", [listener("replication", port=9100)], False),
        ("presence", [listener("replication", port=9100)], False),
    ],
)
def test_a_writer_that_no_client_can_reach(
    tmp_path: Path, key: str, listeners: list[dict[str, Any]], is_wrong: bool
) -> None:
    """Any other process answers these requests with 500 (element-hq/synapse#17243)."""
    shared = {
        **WHOLE,
        "stream_writers": {key: "w1"},
        "instance_map": {**WHOLE["instance_map"], "w1": {"host": "localhost", "port": 9100}},
    }
    found = run(
        *write(tmp_path, homeserver=shared, w=worker("w1", *listeners)), code=UNWELL if is_wrong else WELL
    )

    assert is_wrong == (("writer_not_served", "w1") in kinds(found))
    if is_wrong:
        assert f"what clients send of {key}" in one(found, "writer_not_served")["why"]


def test_one_writer_of_two_is_enough_for_clients(tmp_path: Path) -> None:
    """The proxy may send all to it."""
    ports = {name: {"host": "localhost", "port": 9100 + at} for at, name in enumerate(("w1", "w2"))}
    shared = {
        **WHOLE,
        "stream_writers": {"receipts": ["w1", "w2"]},
        "instance_map": {**WHOLE["instance_map"], **ports},
    }
    files = write(
        tmp_path,
        homeserver=shared,
        w1=worker("w1", listener("replication", port=9100)),
        w2=worker("w2", listener("replication", port=9101), listener("client", port=8084)),
    )

    assert [] == run(*files, code=WELL)["findings"]


FS1, FS2 = ["fs1"], ["fs1", "fs2"]


@pytest.mark.parametrize(
    ("shared", "own", "found_kinds"),
    [
        # By its own files the main process has no list, and sends everything.
        (None, {"fs1": FS1}, ["done_twice"]),
        (FS1, {"fs1": FS1}, []),
        (FS2, {"fs1": None, "fs2": None}, []),
        (FS2, {"fs1": FS1, "fs2": None}, ["different_lists"]),
        # Which share is whose is by the place in the list.
        (None, {"fs1": FS2, "fs2": FS2[::-1]}, ["different_lists", "done_twice"]),
        (FS2, {"fs1": None, "fs2": []}, ["different_lists"]),
    ],
)
def test_lists_that_are_not_the_same_for_all(
    tmp_path: Path, shared: Any, own: dict[str, Any], found_kinds: list[str]
) -> None:
    """Each process shares its work by the list in its own files."""
    for key in ("federation_sender_instances", "pusher_instances"):
        workers = {
            name: {**worker(name), **({} if names is None else {key: names})} for name, names in own.items()
        }
        homeserver = WHOLE if shared is None else {**WHOLE, key: shared}
        files = write(tmp_path, homeserver=homeserver, **workers)
        found = run(*files, code=UNWELL if found_kinds else WELL)

        assert found_kinds == [kind for kind, _ in kinds(found)]
        for told in (one for one in found["findings"] if one["kind"] == "done_twice"):
            assert f"`{key}: [fs1" in told["remedy"]
            assert "each of master and fs1" in told["why"] or "each of master, fs1 and fs2" in told["why"]


@pytest.mark.parametrize(
    ("text", "name", "is_wrong"), [("sender10", "sender10", True), ("s", "s", False), ("sender10", "s", True)]
)
def test_a_text_where_a_list_is_meant(tmp_path: Path, text: str, name: str, is_wrong: bool) -> None:
    """Its letters are the names: of a thousand servers none is sent to."""
    shared = {**WHOLE, "federation_sender_instances": text}
    files = write(tmp_path, homeserver=shared, w=worker(name, listener("client")))
    found = run(*files, code=UNWELL if is_wrong else WELL)

    told = [one for one in found["findings"] if one["kind"] == "text_for_list"]
    assert is_wrong == bool(told)
    assert all("`federation_sender_instances: [sender10]` in " in one["remedy"] for one in told)
    assert all(one["remedy"].endswith("homeserver.yaml") for one in told)


@pytest.mark.parametrize(
    ("own", "where"),
    [
        ({"server_name": "other.org"}, "findings"),
        ({"database": {"name": "psycopg2", "args": {"host": "pg", "database": "other"}}}, "findings"),
        # A pooler, or another name of the same machine.
        ({"database": {"name": "psycopg2", "args": {"host": "pooler", "database": "synapse"}}}, "notes"),
        ({"redis": {"enabled": True, "host": "otherredis"}}, "notes"),
        ({"redis": {"enabled": True, "host": "${REDIS}"}}, ""),
        ({"database": {"name": "psycopg2", "args": {"host": "pg", "dbname": "synapse"}}}, ""),
        # The name of a database is that of the user, where none is given.
        ({"database": {"name": "psycopg2", "args": {"host": "pg", "user": "synapse"}}}, ""),
        ({"database": {"name": "psycopg2", "args": {"host": "pg", "user": "other"}}}, "findings"),
        ({}, ""),
    ],
)
def test_what_all_processes_have_alike(tmp_path: Path, own: dict[str, Any], where: str) -> None:
    """A worker's own file replaces the shared key: the main process' was looked at alone."""
    shared = {
        **WHOLE,
        "redis": {"enabled": True, "host": "redis"},
        "database": {"name": "psycopg2", "args": {"host": "pg", "database": "synapse"}},
    }
    for others in ({}, {"w1": worker("w1")}):
        files = write(tmp_path, homeserver=shared, w2={**worker("w2"), **own}, **others)
        result = CliRunner().invoke(main, ["inspect", "--files", "-o", "json", *files])
        found = json.loads(result.stdout)

        for place in ("findings", "notes"):
            told = [one["process"] for one in found[place] if one["kind"] == "different_settings"]
            assert ["w2"] * (place == where) == told


def test_a_default_that_is_written_down_is_no_other(tmp_path: Path) -> None:
    """`typing: master` is what a file without it says."""
    files = write(tmp_path, homeserver=WHOLE, w1={**worker("w1"), "stream_writers": {"typing": "master"}})

    assert [] == run(*files, code=WELL)["findings"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_that_synapse_cannot_read(tmp_path: Path, encoding: str) -> None:
    """It opens files as UTF-8."""
    path = tmp_path / "homeserver.yaml"
    path.write_bytes(b"\xfe\xff"[: 2 * (encoding == "utf-16-be")] + "server_name: x\n".encode(encoding))
    result = CliRunner().invoke(main, ["inspect", "--files", "--homeserver", str(path)])

    assert 2 == result.exit_code
    assert "UTF-16" in result.output
