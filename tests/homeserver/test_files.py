"""``inspect --files``: files of public templates and reports, and what is right for each."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from synrepl.cli import main
from synrepl.errors import ConfigError
from synrepl.homeserver.configuration import read_homeserver

CASES = Path(__file__).parent / "cases"
WELL, UNWELL, WRONG, PARTLY = 0, 1, 2, 3


def run(*arguments: object, code: int) -> dict[str, Any]:
    """The answer of ``inspect --files -o json`` with this exit code."""
    result = CliRunner().invoke(main, ["inspect", "--files", "-o", "json", *map(str, arguments)])
    assert code == result.exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def case(name: str, *rest: object, code: int) -> dict[str, Any]:
    """The answer for one of `CASES`: all of its files are given, the homeserver's first."""
    folder = CASES / name
    files = sorted(one for one in folder.iterdir() if one.suffix != ".sql")
    first = next(one for one in files if one.stem in ("homeserver", "main"))
    workers = [word for one in files if one != first for word in ("--worker", one)]
    return run("--homeserver", first, *workers, *rest, code=code)


def process(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The process of this name."""
    (one,) = [one for one in found["processes"] if one["name"] == name]
    return dict(one)


def kinds(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is wrong, and with which process."""
    return sorted({(one["kind"], one["process"]) for one in found["findings"]})


def test_a_shared_file_among_the_workers() -> None:
    """It counts for all, and most of all for the main process."""
    found = case("shared-file-among-workers", code=WELL)

    assert {"master", "event_persister1", "federation_sender1"} == {one["name"] for one in found["processes"]}
    assert {
        "host": "localhost",
        "port": 6379,
        "path": None,
        "dbid": None,
        "username": None,
        "use_tls": False,
    } == (found["redis"])
    assert process(found, "master")["metrics"] == "http://10.0.0.1:19090/_synapse/metrics"
    assert process(found, "master")["file"] == str(CASES / "shared-file-among-workers/homeserver.yaml")
    persister = process(found, "event_persister1")
    assert ("10.0.0.2", []) == (persister["host"], persister["duties"])
    assert ["backfill", "events", "profile_updates", "sticky_events"] == persister["writes"]
    sender = process(found, "federation_sender1")
    assert (None, None, ["federation"], []) == tuple(
        sender[key] for key in ("host", "metrics", "duties", "writes")
    )


def test_the_option_of_a_file_changes_nothing() -> None:
    folder = CASES / "shared-file-among-workers"
    files = [folder / "homeserver.yaml", *sorted((folder / "workers").iterdir())]
    as_workers = [word for one in files for word in ("--worker", one)]
    as_homeserver = [word for one in files for word in ("--homeserver", one)]

    assert (
        case("shared-file-among-workers", code=WELL)
        == run(*as_homeserver, code=WELL)
        == run("--homeserver", files[0], *as_workers[2:], code=WELL)
    )


def test_no_two_processes_are_at_one_address() -> None:
    """Each pod has its metrics at port 9001; two of them have no known host."""
    found = case("same-metrics-port", code=UNWELL)

    # The shortened file of the writer has no listener for the others.
    assert [("wrong_port", "hs-event-persister-0")] == kinds(found)

    assert {
        "master": "http://hs-main.matrix.svc:9001/_synapse/metrics",
        "hs-event-persister-0": "http://hs-event-persister-0.matrix.svc:9001/_synapse/metrics",
        "hs-fed-sender-0": None,
        "hs-pusher-0": None,
    } == {one["name"]: one["metrics"] for one in found["processes"]}
    noted = {one["process"]: one["why"] for one in found["notes"] if one["kind"] == "unmeasured"}
    assert {"hs-fed-sender-0", "hs-pusher-0"} == set(noted)
    assert "do not say on which host" in noted["hs-pusher-0"]
    assert ["pushers"] == process(found, "hs-pusher-0")["duties"]


def test_a_worker_app_in_the_file_of_the_main_process(tmp_path: Path) -> None:
    """Left in by mistake (matrix-org/synapse#11366): the others still have the shared keys from there."""
    (tmp_path / "homeserver.yaml").write_text(
        "server_name: hs\nworker_app: synapse.app.generic_worker\nworker_name: w1\n"
        "redis: {enabled: true}\nworker_replication_secret: x\n"
        "instance_map: {main: {host: synapse, port: 9093}}\n"
        "listeners: [{port: 9093, type: http, resources: [{names: [replication]}]}]\n"
    )
    (tmp_path / "w2.yaml").write_text("worker_app: synapse.app.generic_worker\nworker_name: w2\n")

    both = run("--homeserver", tmp_path / "homeserver.yaml", "--worker", tmp_path / "w2.yaml", code=UNWELL)
    alone = run("--homeserver", tmp_path / "homeserver.yaml", code=UNWELL)

    for found in both, alone:
        assert [("refused_at_start", "master")] == kinds(found)
        [why] = [one["why"] for one in found["findings"]]
        assert "`worker_app`" in why
        assert "a main process does not start with it" in why
    assert ["w1", "w2"] == [one["name"] for one in both["processes"] if one["file"]]


@pytest.mark.parametrize("app", ["", "worker_app: synapse.app.homeserver\n"])
def test_a_worker_name_in_the_file_of_the_main_process(tmp_path: Path, app: str) -> None:
    """A guide has both; 1.66 starts with them, as a process of that name, which writes nothing."""
    (tmp_path / "homeserver.yaml").write_text(
        f"server_name: hs\n{app}worker_name: main\nlisteners: [{{port: 8008, type: http}}]\n"
    )
    found = run("--homeserver", tmp_path / "homeserver.yaml", code=UNWELL)

    [one] = [one for one in found["findings"] if one["kind"] == "refused_at_start"]
    assert "has a `worker_name`" in one["why"]
    assert "remove `worker_name`, which belongs into" in one["remedy"]
    assert "worker_app" not in one["why"] + one["remedy"]


def test_what_is_read_as_another_process_is_told_first(tmp_path: Path) -> None:
    """A guide shows `worker_app` in homeserver.yaml: all findings are of a worker that nobody meant."""
    (tmp_path / "homeserver.yaml").write_text(
        "server_name: hs\nworker_app: synapse.app.generic_worker\nredis: {enabled: true}\n"
        "worker_replication_host: 127.0.0.1\nlisteners: [{port: 8008, type: http}]\n"
    )
    words = ["inspect", "--files", "--homeserver", str(tmp_path / "homeserver.yaml")]

    lines = CliRunner().invoke(main, words).stdout.splitlines()

    first = next(at for at, one in enumerate(lines) if ": " in one and not one.startswith("hs:"))
    assert lines[first].startswith("refused_at_start (master): ")
    assert "remove `worker_app`" in lines[first + 1]
    # Who pushes is not known without the main process, and no key says so.
    assert not [one for one in lines if "is not checked" in one]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "data": {"w1.sh": "worker_name: w1"}},
            "a manifest of Kubernetes (ConfigMap)",
        ),
        ({"services": {"synapse": {"image": "matrixdotorg/synapse"}}}, "a file of Docker Compose"),
    ],
)
def test_a_file_around_those_of_synapse_is_told(tmp_path: Path, content: Any, said: str) -> None:
    """Synapse would read it, and find nothing in it; so did this."""
    (tmp_path / "around.yaml").write_text(json.dumps(content))
    file = CASES / "ignored-file/homeserver.yaml"

    found = run("--homeserver", file, "--worker", tmp_path / "around.yaml", code=PARTLY)

    [why] = [one["why"] for one in found["unseen"] if one["what"] == str(tmp_path / "around.yaml")]
    assert said in why
    assert "give the file that Synapse gets" in why


def test_a_worker_without_a_name() -> None:
    found = case("worker-without-name", code=WELL)

    assert ["master", "synapse.app.generic_worker"] == [one["name"] for one in found["processes"]]


def test_a_duty_by_an_old_worker_app() -> None:
    found = case("duty-by-legacy-app", code=WELL)

    assert ["federation"] == process(found, "fedsender1")["duties"]
    assert "federation" not in process(found, "master")["duties"]


def test_a_registration_in_a_container(tmp_path: Path) -> None:
    """Its file is found by --root and --map; without them that is a note."""
    found = case("registration-in-a-container", code=WELL)
    assert ["unread_registration"] == [one["kind"] for one in found["notes"] if not one["process"]]

    (tmp_path / "bridge").mkdir()
    (tmp_path / "bridge/registration.yaml").write_text("id: bridge\n")
    mapped = case("registration-in-a-container", "--map", f"/data={tmp_path}", code=WELL)
    assert [] == [one for one in mapped["notes"] if one["kind"] == "unread_registration"]

    (tmp_path / "data").symlink_to(tmp_path)
    rooted = case("registration-in-a-container", "--root", tmp_path, code=WELL)
    assert mapped == rooted


def test_what_is_wrong_in_an_instance_map() -> None:
    found = case("instance-map", code=UNWELL)

    assert [
        ("no_main", "writer1"),
        ("refused_key", ""),
        ("refused_key", "writer1"),
        ("unknown_process", "writer2"),
        ("unknown_process", "writer3"),
        ("wrong_port", "writer1"),
        ("wrong_writers", ""),
    ] == kinds(found)
    assert all(one["remedy"] and one["cost"] for one in found["findings"])
    (wrong,) = [one for one in found["findings"] if one["kind"] == "wrong_port"]
    assert "has 9999 for writer1" in wrong["why"]
    assert "replication at 9094" in wrong["why"]


def test_a_release_that_takes_what_newer_ones_refuse() -> None:
    assert ("no_main", "writer1") not in kinds(case("instance-map", "--synapse", "1.66", code=UNWELL))


def test_duties_of_nobody() -> None:
    """Each is told once, with the name that is near."""
    found = case("duty-for-nobody", code=UNWELL)

    names = ("appservice9", "background9", "directory9", "media9", "pusher9", "sender_1")
    assert [("unknown_process", name) for name in names] == kinds(found)
    assert "did you mean sender1?" in str(found["findings"])
    assert [[], []] == [one["duties"] for one in found["processes"]]


def test_names_without_any_workers_file_are_not_seen() -> None:
    file = CASES / "duty-for-nobody/homeserver.yaml"
    found = run("--homeserver", file, code=PARTLY)

    assert [] == found["findings"]
    [why] = [one["why"] for one in found["unseen"] if one["what"] == "sender_1"]
    assert "federation_sender_instances" in why
    assert "nobody does what that key leaves to it" in why


def test_redis_enabled_as_text() -> None:
    assert "redis.example.org" == case("redis-enabled-as-text", code=WELL)["redis"]["host"]


@pytest.mark.parametrize(
    ("name", "release", "told"),
    [
        ("get_current_state_ids", "1.116", "has no such cache (until 1.61)"),
        ("get_current_state_ids", "1.60", ""),
        # As Synapse compares them: without case and other signs.
        ("*Get_Current_State_IDs*", "1.116", "has no such cache (until 1.61)"),
        ("get_users_in_room", "1.116", ""),
        # Not of the store, so that it is not known which releases have it.
        ("*stateGroupCache*", "1.116", ""),
        ("my_own", "1.116", ""),
    ],
)
def test_a_factor_of_a_cache_that_the_release_lacks(
    tmp_path: Path, name: str, release: str, told: str
) -> None:
    """It has no effect, and no message says so (element-hq/synapse#17791 has two)."""
    file = tmp_path / "homeserver.yaml"
    file.write_text(json.dumps({**WHOLE, "caches": {"per_cache_factors": {name: 5}}}))
    found = run("--homeserver", file, "--synapse", release, code=WELL)
    notes = [one["why"] for one in found["notes"] if one["kind"] == "ignored_key"]

    assert bool(told) == bool(notes)
    assert all(told in one for one in notes)


@pytest.mark.parametrize(
    ("limit", "workers", "told"),
    [
        ("2048M", 8, "of these 9 together is 18.0 GiB"),
        (1073741824, 1, "of these 2 together is 2.0 GiB"),
        ("2G", 0, ""),
        ("much", 8, ""),
        ("{{ .Values.memory }}", 8, ""),
    ],
)
def test_what_the_caches_of_all_processes_may_have(
    tmp_path: Path, limit: str | int, workers: int, told: str
) -> None:
    """The limit is of each process (spantaleev/matrix-docker-ansible-deploy#3336)."""
    tuning = {
        "max_cache_memory_usage": limit,
        "target_cache_memory_usage": limit,
        "min_cache_ttl": "1m",
    }
    (tmp_path / "hs.yaml").write_text(json.dumps({**WHOLE, "caches": {"cache_autotuning": tuning}}))
    options: list[object] = ["--homeserver", tmp_path / "hs.yaml"]
    for number in range(workers):
        file = tmp_path / f"w{number}.yaml"
        file.write_text(f"worker_app: synapse.app.generic_worker\nworker_name: w{number}\n")
        options += ["--worker", file]
    result = CliRunner().invoke(main, ["inspect", "--files", "-o", "json", *map(str, options)])
    notes = [one["why"] for one in json.loads(result.output)["notes"] if one["kind"] == "cache_memory"]

    assert bool(told) == bool(notes)
    assert all(told in one for one in notes)


def test_a_file_that_synapse_ignores() -> None:
    found = case("ignored-file", code=WELL)

    assert "localhost" == found["redis"]["host"]
    (ignored,) = [one for one in found["notes"] if one["kind"] == "ignored_file"]
    assert "list.yaml" in ignored["why"]


def test_a_folder_of_one_process_may_have_a_file_for_each_key(tmp_path: Path) -> None:
    """With some for all processes among them."""
    for folder in ("w1", "w2"):
        (tmp_path / folder).mkdir()
        for key, value in (
            ("worker_app", "synapse.app.generic_worker"),
            ("worker_name", folder),
            ("worker_listeners", [{"type": "metrics", "port": 9100 + len(list(tmp_path.iterdir()))}]),
            ("instance_map", {"main": {"host": "127.0.0.1", "port": 9093}}),
            ("enable_metrics", True),
            ("redis", {"enabled": True}),
        ):
            (tmp_path / folder / f"{key}.yaml").write_text(json.dumps({key: value}))
    file = CASES / "ignored-file/homeserver.yaml"
    found = run("--homeserver", file, "--worker", tmp_path / "w1", "--worker", tmp_path / "w2", code=WELL)

    assert [("master", None), ("w1", 9101), ("w2", 9102)] == [
        (one["name"], one["metrics"] and int(one["metrics"].split(":")[2].partition("/")[0]))
        for one in found["processes"]
    ]


def test_workers_without_redis_are_reported(tmp_path: Path) -> None:
    """Once, as something that was not seen: another file may have it."""
    folder = CASES / "ignored-file"
    worker = tmp_path / "w1.yaml"
    worker.write_text(
        "worker_app: synapse.app.generic_worker\nworker_name: w1\ninstance_map: {main: {path: /s}}\n"
    )
    found = run("--homeserver", folder / "homeserver.yaml", "--worker", worker, code=PARTLY)

    assert ["Redis"] == [one["what"] for one in found["unseen"]]
    assert [] == run("--homeserver", folder / "homeserver.yaml", code=WELL)["unseen"]


@pytest.mark.parametrize(
    ("host", "bind", "metrics"),
    [
        ("", "0.0.0.0", "http://127.0.0.1:9100/_synapse/metrics"),
        ("", "127.0.0.1", "http://127.0.0.1:9100/_synapse/metrics"),
        ("host: db.example.org", "127.0.0.1", "http://127.0.0.1:9100/_synapse/metrics"),
        ("host: db.example.org", "0.0.0.0", None),
        ("host: /run/postgresql", "0.0.0.0", "http://127.0.0.1:9100/_synapse/metrics"),
    ],
)
def test_loopback_is_a_default_on_one_host_only(
    tmp_path: Path, host: str, bind: str, metrics: str | None
) -> None:
    """An address that the file gives is none."""
    file = tmp_path / "homeserver.yaml"
    file.write_text(
        f"server_name: x\nenable_metrics: true\ndatabase: {{name: psycopg2, args: {{{host}}}}}\n"
        f"listeners: [{{type: metrics, port: 9100, bind_addresses: ['{bind}']}}]\n"
    )

    assert metrics == process(run("--homeserver", file, code=WELL), "master")["metrics"]


SENDER = "worker_app: synapse.app.federation_sender"


LISTENER = "worker_listeners: [{{{}, type: http, {}}}]"


@pytest.mark.parametrize(
    ("line", "release", "kind"),
    [
        ("worker_app: synapse.app.generic_workers", "1.163", "refused_at_start"),
        ("redis: {enabled: true, port: '6380'}", "1.163", "refused_at_start"),
        ("worker_log_config: [a]", "1.163", "refused_key"),
        ("worker_replication_port: 9092", "1.67", "refused_key"),
        ("worker_replication_port: 9092", "1.66", None),
        ("worker_listeners: [{type: replication, port: 1}]", "1.67", "refused_key"),
        ("stream_writers: {thread_subscriptions: w1}", "1.134", "refused_key"),
        ("instance_map:", "1.163", "refused_key"),
        ("caches: {global_factor: '0.5'}", "1.163", "refused_key"),
        ("caches: {global_factor: 2, per_cache_factors: {get_users_in_room: 0.5}}", "1.163", None),
        ("caches: {per_cache_factors: {get_users_in_room: '5'}}", "1.30", "refused_key"),
        ("caches: {per_cache_factors: [get_users_in_room]}", "1.163", "refused_key"),
        ("caches: {per_cache_factors: }", "1.163", None),
        # All three, or the process does not start.
        ("caches: {cache_autotuning: {max_cache_memory_usage: 2048M}}", "1.60", "refused_key"),
        ("caches: {cache_autotuning: {max_cache_memory_usage: 2048M}}", "1.59", None),
        ("database: {name: postgresql, args: {}}", "1.163", "refused_at_start"),
        ("database: {name: psycopg2, args: {cp_max: '10'}}", "1.163", "refused_at_start"),
        ("database: {name: psycopg2, args: {pool_size: 10}}", "1.163", "refused_at_start"),
        (
            "database: {name: psycopg2, args: {cp_max: 10, keepalives_idle: 10, sslmode: prefer}}",
            "1.163",
            None,
        ),
        ("databases: {main: {name: mysql, args: {}}}", "1.163", "refused_at_start"),
        ("databases: {a: {name: psycopg2}}", "1.163", "refused_key"),
        ("databases: {a: {name: psycopg2}}", "1.6", None),
        ("database: {}\ndatabases: {a: {name: psycopg2}}\ndatabase_path: /x.db", "1.163", "refused_key"),
        ("database: {}\ndatabases: {a: {name: psycopg2}}", "1.163", None),
        # Texts for lists: of names Synapse takes the letters.
        (LISTENER.format("port: 1", "resources: [{names: client}]"), "1.163", "refused_key"),
        (LISTENER.format("port: 1", "resources: [{names: client}]"), "1.27", None),
        (LISTENER.format("port: 1", "resources: {names: [client]}"), "1.163", "refused_key"),
        (LISTENER.format("port: 1", "resources: client"), "1.163", "refused_key"),
        (LISTENER.format("port: 99999", "resources: [{names: [client]}]"), "1.163", "refused_key"),
        ("worker_listeners: [{path: /m.sock, type: manhole}]", "1.163", "refused_key"),
        ("enable_metrics: true\nworker_listeners: [{path: /m.sock, type: metrics}]", "1.163", "refused_key"),
        # It is not looked at then.
        ("enable_metrics: false\nworker_listeners: [{path: /m.sock, type: metrics}]", "1.163", None),
        # The worker ended itself before federation_sender_instances said who sends.
        (f"{SENDER}\nfederation_sender_instances: [w1]", "1.24", "refused_at_start"),
        (f"{SENDER}\nsend_federation: false", "1.24", None),
        (SENDER, "1.28", "refused_at_start"),
        (SENDER, "1.29", "refused_key"),
        ("worker_app: synapse.app.pusher", "1.0", "refused_at_start"),
        ("worker_app: synapse.app.user_dir", "1.58", "refused_at_start"),
        ("worker_app: synapse.app.appservice", "1.59", "refused_key"),
    ],
)
def test_keys_that_a_release_refuses(tmp_path: Path, line: str, release: str, kind: str | None) -> None:
    """With the release in the text."""
    worker = tmp_path / "w1.yaml"
    shared = {"worker_app": "synapse.app.generic_worker", "worker_name": "w1"}
    entry = "{host: 127.0.0.1, port: 9093}"
    lines = [f"{key}: {value}" for key, value in shared.items() if not line.startswith(key)]
    lines += [f"instance_map: {{main: {entry}, w1: {entry}}}"] * ("instance_map" not in line)
    lines += ["worker_listeners: [{type: http, port: 9093, resources: [{names: [replication]}]}]"] * (
        "worker_listeners" not in line
    )
    worker.write_text("\n".join([*lines, line, *["redis: {enabled: true}"] * ("redis" not in line)]))
    file = CASES / "redis-enabled-as-text/homeserver.yaml"
    options = ("--homeserver", file, "--worker", worker, "--synapse", release)
    result = CliRunner().invoke(main, ["inspect", "--files", "-o", "json", *map(str, options)])
    whys = [one["why"] for one in json.loads(result.stdout)["findings"] if one["kind"] == kind]

    assert bool(whys) is (kind is not None)
    assert all(" refuse" in why for why in whys)


@pytest.mark.parametrize(
    "shared",
    [
        {"stream_writers": {"rooms_new": "master"}},
        {"listeners": [{"type": "quic", "port": 8008}]},
        {"listeners": [{"type": "http", "port": 8008, "resources": [{"names": ["client", "calls"]}]}]},
        {"database": {"name": "psycopg2", "args": {"compression_level": "x"}}},
        {"database": {"name": "duckdb", "args": {}}},
    ],
)
def test_what_a_release_that_is_not_known_may_have(tmp_path: Path, shared: dict[str, Any]) -> None:
    """A newer stream, resource or driver is no mistake there; that it is not known is said."""
    files = write(tmp_path, homeserver={"server_name": "x", **shared})
    [known] = run(*files, code=UNWELL)["findings"]
    [told] = [one for one in run(*files, "--synapse", "1.170", code=WELL)["notes"] if "1.170" in one["why"]]

    assert "every release up to 1.163 refuses" in known["why"]
    assert "if the homeserver is newer than 1.163, give --synapse RELEASE" in known["remedy"]
    at_newest = run(*files, "--synapse", "1.163.2", code=UNWELL)
    assert [] == [one for one in at_newest["notes"] if one["kind"] == "newer_release"]
    assert "newer_release" == told["kind"]
    assert "taken for 1.163" in told["why"]
    assert known["why"].partition(":")[0] in told["why"]


@pytest.mark.parametrize(
    ("line", "release", "is_refused"),
    [
        ("enable_registration: true", "1.56", True),
        ("enable_registration: true", "1.55", False),
        ("enable_registration: 'yes'", "1.163", True),
        ("disable_registration: false", "1.163", True),
        ("enable_registration: false", "1.163", False),
        ("disable_registration: true\nenable_registration: true", "1.163", False),
        ("enable_registration: ${OPEN}", "1.163", False),
        ("enable_registration: true\nenable_registration_without_verification: true", "1.163", False),
        ("enable_registration: true\nenable_registration_without_verification: ${OPEN}", "1.163", False),
        ("enable_registration: true\nregistration_requires_token: true", "1.163", False),
        ("enable_registration: true\nregistrations_require_3pid: [email]", "1.163", False),
        ("enable_registration: true\nregistrations_require_3pid: []", "1.163", True),
        ("enable_registration: true\nenable_registration_captcha: true", "1.163", False),
    ],
)
def test_open_registration_without_a_check(tmp_path: Path, line: str, release: str, is_refused: bool) -> None:
    """The main process ends at its start with it since 1.56: files of before, at a newer release."""
    (tmp_path / "homeserver.yaml").write_text(
        f"server_name: hs\nlisteners: [{{port: 1, type: http}}]\n{line}"
    )
    options = ("--homeserver", str(tmp_path / "homeserver.yaml"), "--synapse", release)
    found = json.loads(CliRunner().invoke(main, ["inspect", "--files", "-o", "json", *options]).stdout)

    assert is_refused == (("refused_at_start", "master") in kinds(found))


def write(folder: Path, **files: dict[str, Any]) -> list[str]:
    """Options that name these files; the first is the homeserver's."""
    options: list[str] = []
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(json.dumps(content))
        options += ["--worker" if options else "--homeserver", str(folder / f"{name}.yaml")]
    return options


WORKER = {"worker_app": "synapse.app.generic_worker", "worker_name": "w1"}
WHOLE: dict[str, Any] = {
    "server_name": "x",
    "redis": {"enabled": True},
    "instance_map": {"main": {"host": "127.0.0.1", "port": 9093}},
}


OLD_SENDER = {
    "worker_app": "synapse.app.generic_worker",
    "worker_name": "s1",
    "worker_replication_host": "hs",
}


def test_what_is_left_undone_by_a_process_that_does_not_start(tmp_path: Path) -> None:
    """The table has its work, and no word said that nobody does it meanwhile."""
    listener = [{"type": "http", "port": 9101, "resources": [{"names": ["replication"]}]}]
    entry = {"host": "127.0.0.1", "port": 9101}
    entries = {**WHOLE["instance_map"], "s1": entry}
    shared = {**WHOLE, "instance_map": entries, "stream_writers": {"typing": "s1"}}
    old = {**OLD_SENDER, "worker_listeners": listener}
    whys = [
        one["why"]
        for senders in (["s1"], ["s1", "w1"])
        for one in run(
            *write(
                tmp_path, homeserver={**shared, "federation_sender_instances": senders}, s1=old, w1=WORKER
            ),
            code=UNWELL,
        )["findings"]
        if one["kind"] == "refused_key"
    ]

    assert [
        "nothing is sent to other servers" in whys[0],
        "nothing is sent to other servers" in whys[1],
        *("requests that write typing fail" in why for why in whys),
    ] == [True, False, True, True]


def test_a_worker_without_a_server_name_has_the_main_process_file_as_well(tmp_path: Path) -> None:
    """Else it would not start. One that has all of it does not."""
    main_file = {**WHOLE, "worker_app": "synapse.app.homeserver", "pusher_instances": ["w1"]}
    part = run(*write(tmp_path, homeserver=main_file, w1=WORKER), code=WELL)
    whole = run(*write(tmp_path, homeserver=main_file, w1={**WHOLE, **WORKER}), code=WELL)

    assert [["pushers"], []] == [process(found, "w1")["duties"] for found in (part, whole)]


@pytest.mark.parametrize("release", ["1.25", "1.66", "1.163"])
@pytest.mark.parametrize("is_shared", [False, True])
def test_what_two_processes_do_for_all(tmp_path: Path, release: str, is_shared: bool) -> None:
    """The old switch in the worker's file alone leaves it to both (mautrix/whatsapp#250)."""
    port = {} if release == "1.163" else {"worker_replication_http_port": 9093}
    worker = {"worker_app": "synapse.app.appservice", "worker_name": "w1", **port}
    switch = {"notify_appservices": False}
    files = {**WHOLE, **(switch if is_shared else {})}, {**worker, **({} if is_shared else switch)}
    options = write(tmp_path, homeserver=files[0], w1=files[1])

    found = run(*options, "--synapse", release, code=WELL if is_shared else UNWELL)

    assert ([] if is_shared else [("done_twice", "")]) == kinds(found)
    if not is_shared:
        [finding] = found["findings"]
        assert "each of master and w1 sends to application services" in finding["why"]
        key = "notify_appservices: false" if release == "1.25" else "notify_appservices_from_worker"
        assert key in finding["remedy"]


def test_workers_with_writers_of_their_own(tmp_path: Path) -> None:
    """A key at the top replaces the shared one whole."""
    port = {"host": "127.0.0.1", "port": 9100}
    shared = {
        **WHOLE,
        "stream_writers": {"typing": "w1"},
        "instance_map": {**WHOLE["instance_map"], "w1": port},
    }
    listens = {
        "worker_listeners": [
            {"type": "http", "port": 9100, "resources": [{"names": ["replication", "client"]}]}
        ]
    }
    own = {**WORKER, **listens, "stream_writers": {"events": "w1"}}
    found = run(*write(tmp_path, homeserver=shared, w1=own), code=UNWELL)

    assert [("different_writers", "w1")] == kinds(found)
    assert "events" in process(found, "w1")["writes"]


def test_a_secret_that_cannot_be_read_is_no_other_secret(tmp_path: Path) -> None:
    """It is not seen. A text with a variable left in is not known either."""
    for secret in (
        {"worker_replication_secret_path": "/no/such"},
        {"worker_replication_secret": "${SECRET}"},
    ):
        own = {**WORKER, "worker_replication_secret": None, **secret}
        files = write(tmp_path, homeserver={**WHOLE, "worker_replication_secret": "s"}, w1=own)

        assert [] == run(*files, code=PARTLY)["findings"]


def test_a_worker_that_is_called_as_the_main_process(tmp_path: Path) -> None:
    """Both are told: neither can be another's."""
    found = run(*write(tmp_path, homeserver=WHOLE, w1={**WORKER, "worker_name": "master"}), code=UNWELL)

    assert [("name_twice", "master")] == kinds(found)


def test_pods_with_all_shared_keys_and_no_worker_name(tmp_path: Path) -> None:
    """As a chart renders them: the cause comes first, and no finding repeats a key for each file.

    (code-tool/matrix-stack, charts/synapse/tests/golden/fixtures/test-synapse-secret.golden.yaml)
    """
    writers = [f"synapse-{one}-0" for one in ("typing", "receipts", "presence", "account-data")]
    shared = {
        **WHOLE,
        "instance_map": {name: {"host": name, "port": 9093} for name in ("main", *writers)},
        "stream_writers": {name.split("-", 1)[1][:-2].replace("-", "_"): [name] for name in writers},
    }
    app = {"worker_app": "synapse.app.generic_worker"}
    found = run(
        *write(tmp_path, homeserver=shared, **{f"w{number}": {**shared, **app} for number in range(5)}),
        code=UNWELL,
    )

    first, *others = found["findings"]
    assert ("name_twice", "synapse.app.generic_worker") == (first["kind"], first["process"])
    assert "5 files have no `worker_name`" in first["why"]
    assert "and 2 more" in first["why"]
    assert sorted(writers) == [one["process"] for one in sorted(others, key=lambda one: one["process"])]
    for one in others:
        assert "homeserver.yaml and 5 other files" in one["why"]
        assert "5 files have no `worker_name`, and one of them may be meant" in one["why"]
        assert "did you mean" not in one["why"]
        assert len(one["why"]) < 600


def test_the_name_that_is_meant(tmp_path: Path) -> None:
    """Not one that the same keys name as well, but the one around it; and the main process by its own names.

    (Andrewed95/Messenger, deployment/main-instance)
    """
    persisters = [f"synapse-event-persister-{number}" for number in range(2)]
    typing = ["synapse-typing-writer-0"]
    shared = {
        **WHOLE,
        "instance_map": {
            name: {"host": name, "port": 9093} for name in ("synapse-main-0", *persisters, *typing)
        },
        "stream_writers": {"events": persisters, "typing": typing, "account_data": ["synapse-main-0"]},
    }
    listens = {
        "worker_listeners": [{"type": "http", "port": 9093, "resources": [{"names": ["replication"]}]}]
    }
    workers = {
        **{f"p{number}": f"event_persister_{name}" for number, name in enumerate(persisters)},
        "typing": typing[0],
    }
    found = run(
        *write(
            tmp_path,
            homeserver=shared,
            **{file: {**WORKER, **listens, "worker_name": name} for file, name in workers.items()},
        ),
        code=UNWELL,
    )

    why = {one["process"]: one["why"] for one in found["findings"] if one["kind"] == "unknown_process"}
    assert sorted([*persisters, "synapse-main-0"]) == sorted(why)
    for name in persisters:
        assert f"did you mean event_persister_{name}?" in why[name]
    assert "did you mean" not in why["synapse-main-0"]
    assert "the main process is called main in instance_map, and master elsewhere" in why["synapse-main-0"]


@pytest.mark.parametrize(
    ("entry", "said"), [("main", "has the main process already"), ("w1", "name the main")]
)
def test_the_cure_of_an_old_key_fits_the_files(tmp_path: Path, entry: str, said: str) -> None:
    """(grantm/synapse-workers-config-example has both)"""
    shared = {**WHOLE, "instance_map": {entry: {"host": "localhost", "port": 9093}}}
    old = {**WORKER, "worker_replication_host": "127.0.0.1"}
    found = run(*write(tmp_path, homeserver=shared, w1=old), code=UNWELL)

    (one,) = [one for one in found["findings"] if one["kind"] == "refused_key"]
    assert said in one["remedy"]


@pytest.mark.parametrize(
    ("host", "bind", "is_noted"),
    [
        ("synapse", {"bind_addresses": ["127.0.0.1"]}, True),
        ("synapse", {"bind_address": "::1"}, True),
        ("synapse", {"bind_addresses": ["127.0.0.1", "10.0.0.2"]}, False),
        ("synapse", {"bind_addresses": []}, False),
        ("synapse", {}, False),
        ("localhost", {"bind_addresses": ["127.0.0.1"]}, False),
    ],
)
def test_a_listener_that_others_do_not_reach(
    tmp_path: Path, host: str, bind: dict[str, Any], is_noted: bool
) -> None:
    """A note, as the host's name may be one of this machine. (Of a script that writes files for Docker.)"""
    listener = {"type": "http", "port": 9093, "resources": [{"names": ["replication"]}], **bind}
    shared = {
        **WHOLE,
        "listeners": [{**listener, "port": 8008, "bind_addresses": ["::1"]}, listener],
        "instance_map": {"main": {"host": host, "port": 9093}},
    }
    found = run(*write(tmp_path, homeserver=shared, w1=WORKER), code=WELL)

    notes = [one["why"] for one in found["notes"] if one["kind"] == "loopback_only"]
    assert is_noted == bool(notes)
    assert all("listens for replication at 9093 of this machine alone" in one for one in notes)


@pytest.mark.parametrize(("bind", "release", "count"), [("127.0.0.1", "1.26", 1), ("0.0.0.0", "1.26", 0)])
def test_a_main_process_at_loopback_by_the_older_keys(
    tmp_path: Path, bind: str, release: str, count: int
) -> None:
    """As famedly/ansible-collection-matrix writes it: in a container no worker reaches it."""
    (tmp_path / "homeserver.yaml").write_text(
        "server_name: hs\nredis: {enabled: true}\n"
        f"listeners: [{{port: 9003, bind_addresses: ['{bind}'], type: http,"
        " resources: [{names: [replication]}]}]\n"
    )
    (tmp_path / "w1.yaml").write_text(
        "worker_app: synapse.app.generic_worker\nworker_name: w1\n"
        "worker_replication_host: synapse\nworker_replication_http_port: 9003\n"
    )
    files = "--homeserver", tmp_path / "homeserver.yaml", "--worker", tmp_path / "w1.yaml"
    found = run(*files, "--synapse", release, code=WELL)

    notes = [one["why"] for one in found["notes"] if one["kind"] == "loopback_only"]
    assert count == len(notes)
    assert all("host synapse" in why and "9003" in why for why in notes)


@pytest.mark.parametrize(("release", "what"), [("1.0", []), ("1.66", []), ("1.13", ["Redis"])])
def test_redis_is_not_looked_for_where_lines_go_over_tcp(
    tmp_path: Path, release: str, what: list[str]
) -> None:
    """Releases before 1.13 have no Redis, and up to 1.66 a listener for replication takes its place."""
    tcp = (
        "{port: 9092, type: replication}" if release == "1.66" else "{port: 9093, type: http, resources: []}"
    )
    (tmp_path / "homeserver.yaml").write_text(f"server_name: hs\nlisteners: [{tcp}]\n")
    (tmp_path / "w1.yaml").write_text("worker_app: synapse.app.synchrotron\n")
    files = "--homeserver", tmp_path / "homeserver.yaml", "--worker", tmp_path / "w1.yaml"
    found = run(*files, "--synapse", release, code=PARTLY if what else WELL)

    assert what == [one["what"] for one in found["unseen"]]


@pytest.mark.parametrize(
    ("host", "first", "second", "is_found"),
    [
        # Two federation readers, copied from each other (matrix-org/synapse#10501).
        ("localhost", {"bind_addresses": ["::"]}, {"bind_addresses": ["::"]}, True),
        ("127.0.0.1", {"bind_address": "127.0.0.1"}, {}, True),
        ("localhost", {"bind_addresses": ["127.0.0.1"]}, {"bind_addresses": ["0.0.0.0"]}, True),
        ("localhost", {"bind_addresses": ["127.0.0.1"]}, {"bind_addresses": ["::"]}, True),
        # Of the other family, or another address.
        ("localhost", {"bind_addresses": ["127.0.0.1"]}, {"bind_addresses": ["::1"]}, False),
        ("localhost", {"bind_addresses": ["0.0.0.0"]}, {"bind_addresses": ["::1"]}, False),
        ("localhost", {"bind_addresses": ["127.0.0.1"]}, {"bind_addresses": ["127.0.0.2"]}, False),
        # Not on one machine, or in containers: each has its own 8085.
        ("synapse", {}, {}, False),
        ("${MAIN}", {}, {}, False),
    ],
)
def test_two_processes_at_one_port(
    tmp_path: Path, host: str, first: dict[str, Any], second: dict[str, Any], is_found: bool
) -> None:
    def worker(name: str, **more: Any) -> dict[str, Any]:
        listener = {"type": "http", "port": 8085, "resources": [{"names": ["federation"]}], **more}
        return {**WORKER, "worker_name": name, "worker_listeners": [listener]}

    shared = {**WHOLE, "instance_map": {"main": {"host": host, "port": 9093}}}
    files = write(tmp_path, homeserver=shared, w1=worker("w1", **first), w2=worker("w2", **second))
    found = run(*files, code=UNWELL if is_found else PARTLY if "$" in host else WELL)

    assert ([("port_twice", "w2")] if is_found else []) == kinds(found)
    assert is_found == ("w1 and w2 both listen at 8085 of one machine" in str(found["findings"]))


# -- templates -----------------------------------------------------------------------------------------------


def test_marks_of_templates_are_named_and_their_values_unknown(tmp_path: Path) -> None:
    """Nothing else of the value is shown."""
    file = tmp_path / "homeserver.yaml"
    file.write_text(
        "server_name: x\n"
        "redis: {enabled: true, host: 'pa55w0rd-${REDIS_HOST:-redis}'}\n"
        "instance_map: {main: {host: '{{ main.host }}', port: 9093}}\n"
        "federation_sender_instances: ['${SENDER}']\n"
        "macaroon_secret_key: ${SECRET}\n"
    )
    found = run("--homeserver", file, code=PARTLY)

    assert found["redis"] is None
    assert process(found, "master")["host"] is None
    assert "pa55w0rd" not in str(found)
    whys = [one["why"] for one in found["unseen"]]
    for name in ("redis.host has the variable REDIS_HOST", "main.host", "SENDER"):
        assert any(name in why for why in whys)
    assert not any("SECRET" in why for why in whys)


@pytest.mark.parametrize("key", ["worker_name", "worker_app"])
@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_name_with_a_mark_left_in_is_shown_as_it_is(
    tmp_path: Path, key: str, output: str, copies: int
) -> None:
    """A worker's file whose name comes from the environment of its pod: a traceback for each of its notes."""
    (tmp_path / "homeserver.yaml").write_text(
        "server_name: hs\nredis: {enabled: true}\ninstance_map: {main: {host: synapse, port: 9093}}\n"
        "listeners: [{port: 9093, type: http, resources: [{names: [replication]}]}]\n"
    )
    for number in range(copies):
        values: dict[str, Any] = {"worker_app": "synapse.app.generic_worker", "worker_name": "w1"}
        values[key] = "${WORKER_NAME}"
        values["worker_listeners"] = [{"type": "http", "port": 8083, "resources": [{"names": ["client"]}]}]
        (tmp_path / f"w{number}.yaml").write_text(json.dumps(values))
    workers = [word for one in range(copies) for word in ("--worker", str(tmp_path / f"w{one}.yaml"))]
    words = ["inspect", "--files", "-o", output, "--homeserver", str(tmp_path / "homeserver.yaml"), *workers]

    result = CliRunner().invoke(main, words)

    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "WORKER_NAME" in result.stdout


@pytest.mark.parametrize(
    "line",
    [
        "redis: {enabled: true, port: {{ redis.port }}, host: redis}",
        "redis: {enabled: true, port: {{ redis.port | default('6379') }}}",
        "redis:\n  enabled: true\n  port: {{redis.port}}  # of the server",
        "redis:\r\n  enabled: true\r\n  port: {{ redis.port }}\r",
        "app_service_config_files: [{{ redis.port }}, a.yaml]",
        "app_service_config_files:\n  - {{ redis.port }}",
        "app_service_config_files:\n- {{ redis.port }}",
    ],
)
def test_a_mark_without_quotes_is_a_value_that_is_not_known(tmp_path: Path, line: str) -> None:
    """It is no YAML, and was refused with the file; all else of it can be examined."""
    file = tmp_path / "homeserver.yaml"
    file.write_text(f"server_name: {{{{ name }}}}\n{line}\nstreams_writers: {{}}\n")
    found = run("--homeserver", file, code=UNWELL)

    assert [("misspelled_key", "")] == kinds(found)
    assert any("has the variable redis.port left in" in one["why"] for one in found["unseen"])
    assert "{{ name }}" == found["server_name"]


@pytest.mark.parametrize(
    "line",
    [
        "port: {{ port }}: x",
        "{{ key }}: x",
        "{% if x %}",
        "host: {{ a }}{{ b }}",
        "a: {{ port }}\n{% if x %}",
        "a: 'x, {{ port }}, y'\nb: {{ port }}",
    ],
)
def test_a_template_that_is_no_yaml(tmp_path: Path, line: str) -> None:
    file = tmp_path / "homeserver.yaml"
    file.write_text(f"server_name: x\n{line}\n")
    result = CliRunner().invoke(main, ["inspect", "--files", "--homeserver", str(file)])

    assert WRONG == result.exit_code
    assert "template" in result.stderr


# -- where metrics are ---------------------------------------------------------------------------------------

GROUPS: list[dict[str, Any]] = [
    {"targets": ["hs-fed-sender-0:9001"], "labels": {"job": "synapse"}},
    {"targets": ["10.1.1.1:9001"], "labels": {"worker": "hs-pusher-0", "__scheme__": "https"}},
]


@pytest.mark.parametrize(
    "content",
    [
        GROUPS,
        {
            "scrape_configs": [
                {"job_name": "x", "metrics_path": "/_synapse/metrics", "static_configs": GROUPS}
            ]
        },
    ],
)
def test_targets_of_prometheus(tmp_path: Path, content: Any) -> None:
    targets = tmp_path / "targets.json"
    targets.write_text(json.dumps(content))
    found = case("same-metrics-port", "--targets", targets, code=UNWELL)

    assert process(found, "hs-fed-sender-0")["metrics"] == "http://hs-fed-sender-0:9001/_synapse/metrics"
    assert process(found, "hs-pusher-0")["metrics"] == "https://10.1.1.1:9001/_synapse/metrics"
    assert [] == [one for one in found["notes"] if one["kind"] == "unmeasured"]


def test_targets_with_the_number_of_a_process(tmp_path: Path) -> None:
    """As in Synapse's own example. One process may have one target only."""
    targets = tmp_path / "targets.yaml"
    labels = [{"job": "master", "index": 1}, {"job": "federation_sender", "index": 1}]
    groups = [{"targets": [f"a:{number}"], "labels": each} for number, each in enumerate(labels, 1)]
    targets.write_text(
        json.dumps([*groups, {"targets": ["b:1", "b:2"], "labels": {"job": "event_persister1"}}])
    )
    found = case("shared-file-among-workers", "--targets", targets, code=PARTLY)

    assert process(found, "master")["metrics"] == "http://a:1/_synapse/metrics"
    assert process(found, "federation_sender1")["metrics"] == "http://a:2/_synapse/metrics"
    assert ["2 targets are of event_persister1"] == [one["why"].partition(":")[0] for one in found["unseen"]]


@pytest.mark.parametrize("content", ["{}", "[]", "[{targets: []}]", "x", "[1, {targets: [1, 'a/b']}]"])
def test_a_file_without_targets(tmp_path: Path, content: str) -> None:
    targets = tmp_path / "targets.yaml"
    targets.write_text(content)
    file = CASES / "ignored-file/homeserver.yaml"
    result = CliRunner().invoke(
        main, ["inspect", "--files", "--homeserver", str(file), "--targets", str(targets)]
    )

    assert WRONG == result.exit_code
    assert "no targets" in result.stderr


def test_a_password_in_an_address_of_metrics_is_not_shown(tmp_path: Path) -> None:
    """By an option, or by a target of Prometheus."""
    files = write(tmp_path, homeserver=WHOLE, w1=WORKER)
    (tmp_path / "targets.json").write_text(
        json.dumps([{"targets": ["user:s3cret@h:9000"], "labels": {"instance": "w1"}}])
    )
    given = ["--metrics", "master=http://user:s3cret@h:1/m", "--targets", tmp_path / "targets.json"]
    found = run(*files, *given, code=WELL)

    assert "http://h:1/m" == process(found, "master")["metrics"]
    assert "http://h:9000/_synapse/metrics" == process(found, "w1")["metrics"]
    assert "s3cret" not in json.dumps(found)


def test_two_addresses_that_are_one(tmp_path: Path) -> None:
    """On one host, by a mistake: neither is used."""
    listener = "{type: metrics, port: 9001, bind_addresses: [127.0.0.1]}"
    main_file, worker = tmp_path / "homeserver.yaml", tmp_path / "w1.yaml"
    main_file.write_text(f"server_name: x\nenable_metrics: true\nlisteners: [{listener}]\n")
    worker.write_text(
        f"worker_app: synapse.app.generic_worker\nworker_name: w1\nworker_listeners: [{listener}]\n"
        "instance_map: {main: {host: 127.0.0.1, port: 1}}\n"
    )
    found = run("--homeserver", main_file, "--worker", worker, code=UNWELL)

    assert [None, None] == [one["metrics"] for one in found["processes"]]
    assert {"would be that of w1 as well", "would be that of master as well"} == {
        one["why"].partition("metrics ")[2].partition(";")[0]
        for one in found["notes"]
        if one["kind"] == "unmeasured"
    }


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        # Synapse's own manual of 2020 has it so.
        ("streams_writers", "stream_writers"),
        ("stream-writers", "stream_writers"),
        ("federation_senders_instances", "federation_sender_instances"),
        ("notify_appservice_from_worker", "notify_appservices_from_worker"),
        ("run_background_task_on", "run_background_tasks_on"),
        # Settings, and what is like none.
        ("worker_replication_secret_path", ""),
        ("worker_manhole", ""),
        ("enable_metrics", ""),
        ("x_writers", ""),
    ],
)
def test_a_key_that_is_written_wrong(tmp_path: Path, key: str, meant: str) -> None:
    """Synapse ignores it, so that the worker has no work, and nobody says so."""
    (tmp_path / "homeserver.yaml").write_text(f"server_name: hs\n{key}: {{}}\n")

    found = run("--homeserver", tmp_path / "homeserver.yaml", code=UNWELL if meant else WELL)

    told = [one["why"] for one in found["findings"] if one["kind"] == "misspelled_key"]
    assert [f"did you mean {meant}?"] * bool(meant) == [why.partition("; ")[2] for why in told]


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("run_background_tasks", True, "set `run_background_tasks_on: NAME` in the shared file"),
        ("run_background_tasks", "w1", "rename it to `run_background_tasks_on`"),
        ("federation_senders_instances", 2, "set `federation_sender_instances: [NAME]` in the shared file"),
        ("federation_senders_instances", ["w1"], "rename it to `federation_sender_instances`"),
        ("streams_writers", ["w1"], "remove it; its value is none of `stream_writers` either"),
        ("start_pusher", "w1", "remove it; its value is none of `start_pushers` either"),
        ("start_pusher", False, "rename it to `start_pushers`"),
    ],
)
def test_a_key_is_renamed_if_that_helps(tmp_path: Path, key: str, value: Any, remedy: str) -> None:
    """A blog has `run_background_tasks: true` in a worker's file: renamed it does nothing either."""
    files = write(tmp_path, homeserver=WHOLE, w1={**WORKER, key: value})
    [found] = [one for one in run(*files, code=UNWELL)["findings"] if one["kind"] == "misspelled_key"]
    assert remedy in found["remedy"]


def test_one_note_of_many_processes_is_one_line(tmp_path: Path) -> None:
    """A homeserver of 58 processes without metrics had 58 such lines."""
    for number in range(1, 5):
        (tmp_path / f"w{number}.yaml").write_text(
            f"worker_app: synapse.app.generic_worker\nworker_name: w{number}\n"
        )
    (tmp_path / "homeserver.yaml").write_text(
        "server_name: hs\nredis: {enabled: true}\ninstance_map: {main: {host: h, port: 1}}\n"
    )
    workers = [word for number in range(1, 5) for word in ("--worker", str(tmp_path / f"w{number}.yaml"))]
    given = ["inspect", "--files", "--homeserver", str(tmp_path / "homeserver.yaml"), *workers]
    result = CliRunner().invoke(main, given)

    (line,) = [one for one in result.output.splitlines() if one.startswith("note: unmeasured")]
    assert line.startswith("note: unmeasured (master, w1, w2 and 2 more): ")
    assert "--metrics NAME=URL" in line


@pytest.mark.parametrize("key", ["worker_app: synapse.app.generic_worker", "worker_name: w1"])
@pytest.mark.parametrize("has_more", [False, True])
def test_a_workers_file_in_a_folder_of_the_main_process(tmp_path: Path, key: str, has_more: bool) -> None:
    """In conf.d (matrix-org/synapse#3517): the main process reads it too, and does not start."""
    folder, file = tmp_path / "conf.d", tmp_path / "homeserver.yaml"
    folder.mkdir()
    file.write_text(json.dumps({**WHOLE, "redis": {"enabled": True, "port": "6379"}}))
    if has_more:
        (folder / "server_name.yaml").write_text("server_name: x\n")
    (folder / "w1.yaml").write_text(f"{key}\n")

    found = run("--homeserver", file, "--homeserver", folder, code=UNWELL)
    apart = run("--homeserver", file, "--worker", folder, code=UNWELL)
    alone = run("--homeserver", file, "--homeserver", folder / "w1.yaml", code=UNWELL)
    file.rename(folder / "homeserver.yaml")
    flat = run("--homeserver", folder, code=UNWELL)

    first = found["findings"][0]
    assert ("refused_at_start", "master") == (first["kind"], first["process"])
    assert f"the main process reads {folder / 'w1.yaml'}, which is a worker's" in first["why"]
    assert f"move {folder / 'w1.yaml'} out of what the main process is given" in first["remedy"]
    assert all("which is a worker's" not in str(one["findings"]) for one in (apart, alone, flat))


def test_the_app_of_the_main_process_in_its_folder_is_its_own(tmp_path: Path) -> None:
    """As synctl has it."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "homeserver.yaml").write_text(json.dumps(WHOLE))
    (tmp_path / "conf.d/main.yaml").write_text("worker_app: synapse.app.homeserver\n")

    run("--homeserver", tmp_path / "homeserver.yaml", "--homeserver", tmp_path / "conf.d", code=WELL)


# -- a part of the files -------------------------------------------------------------------------------------

OF_WORKER = "worker_app: synapse.app.generic_worker\nworker_name: w1\n"
OF_MAP = "instance_map: {main: {host: localhost, port: 9093}, w1: {host: localhost, port: 9094}}\n"


@pytest.mark.parametrize(
    ("text", "processes", "expected"),
    [
        (OF_WORKER, ["w1"], []),
        (OF_MAP, ["master"], []),
        ("redis: {enabled: true}", ["master"], []),
        ("listeners: [{type: http, port: 8008, resources: [{names: [client]}]}]", ["master"], []),
        # The map may be in another file.
        ("stream_writers: {events: [w1]}", ["master"], []),
        # What is there is judged.
        ("stream_writers: {event: [w1]}", ["master"], [("refused_key", "master")]),
        (OF_MAP + "stream_writers: {events: [w2]}", ["master"], [("refused_key", "master")]),
        ("redis: {enabled: true, port: '6379'}", ["master"], [("refused_at_start", "master")]),
        ("worker_app: synapse.app.none\nworker_name: w1", ["w1"], [("refused_at_start", "w1")]),
        (
            OF_MAP + "listeners: [{type: http, port: 1, resources: [{names: [replication]}]}]",
            ["master"],
            [("wrong_port", "master")],
        ),
    ],
)
def test_a_part_without_server_name_is_read(
    tmp_path: Path, text: str, processes: list[str], expected: list[tuple[str, str]]
) -> None:
    """What is there is judged, and what is missing is not; the answer says so."""
    path = tmp_path / "part.yaml"
    path.write_text(text)
    found = run("--homeserver", path, code=UNWELL if expected else PARTLY)

    assert found["server_name"] is None
    assert processes == [one["name"] for one in found["processes"]]
    assert {(None, None)} == {(one["duties"], one["writes"]) for one in found["processes"]}
    assert expected == kinds(found)
    assert "no file that was given has a `server_name`" in str(found["unseen"])
    assert {"unmeasured"} >= {one["kind"] for one in found["notes"]}


def test_parts_of_several_files(tmp_path: Path) -> None:
    """A worker whose listeners are in none of them has no wrong port."""
    (tmp_path / "map.yaml").write_text(OF_MAP)
    (tmp_path / "w1.yaml").write_text(OF_WORKER)
    found = run("--homeserver", tmp_path / "map.yaml", "--worker", tmp_path / "w1.yaml", code=PARTLY)

    assert ["master", "w1"] == [one["name"] for one in found["processes"]]
    assert [] == found["findings"]


@pytest.mark.parametrize(
    "text",
    ["a: 1", "redis: {host: x}", "listeners: [1, {port: 3}]", "server_name: 5\nredis: {enabled: true}"],
)
def test_a_file_with_nothing_of_synapse_is_no_part(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no server_name"):
        read_homeserver([path], takes_part=True)
