"""Notes on values that Synapse takes without a word, as public reports have them."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from synrepl.cli import main
from synrepl.homeserver import file_notes
from synrepl.homeserver.file_notes import setting_names
from synrepl.homeserver.findings import NOTES
from tests.homeserver.test_files import UNWELL, WELL, WHOLE, WORKER, run, write

ROOT = Path(__file__).resolve().parents[2]
TUNING = {"max_cache_memory_usage": "2G", "target_cache_memory_usage": "1G", "min_cache_ttl": "1m"}
REPLICATION = {"port": 9093, "type": "http", "resources": [{"names": ["replication"]}]}


def test_each_kind_of_note_is_in_the_table() -> None:
    """And in the manual, which has all kinds of notes."""
    manual = (ROOT / "docs/howto/inspect.md").read_text("utf-8")
    kinds = set(re.findall(r'kind="(\w+)"', inspect.getsource(file_notes)))

    assert kinds <= set(NOTES)
    assert [] == [kind for kind in kinds if f"`{kind}`" not in manual]


def notes(folder: Path, kind: str, *rest: str, **files: dict[str, Any]) -> list[str]:
    """The notes of this kind on these files; the first is the homeserver's."""
    found = run(*write(folder, **files), *rest, code=WELL)
    return [one["why"] for one in found["notes"] if one["kind"] == kind]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        # As if it were the counterpart of federation_sender_instances.
        (["federation_receiver_instances"], ["`federation_receiver_instances` in", "is no setting"]),
        (["rc_mesage", "use_presences"], ["`rc_mesage` (did you mean rc_message?)", "are no settings"]),
        # The name of a limit in Synapse's code, and of no key.
        (["rc_messages"], ["`rc_messages` (did you mean rc_message?)"]),
        (["rc_messages_per_second", "rc_message_burst_count"], []),
        (["track_memory_usage"], ["`track_memory_usage` (it is a key below `caches`)"]),
        (["enabled"], ["`enabled` in"]),
        ([f"key{n}" for n in range(12)], ["`key9` and 2 more in"]),
        (["x-common", ".anchor", "_base", "use_presence", "enable_group_creation", "no_tls"], []),
    ],
)
def test_a_key_that_is_no_setting(tmp_path: Path, keys: list[str], told: list[str]) -> None:
    found = notes(tmp_path, "unknown_key", homeserver={**WHOLE, **dict.fromkeys(keys, 1)})

    assert bool(told) == bool(found)
    assert all(one in found[0] for one in told)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"caches": {"presence": {}}}, "`caches.presence` (it is a key at the top, not below"),
        ({"redis": {"enabled": True, "db": 1}}, "`redis.db` (it is `redis.dbid`)"),
        ({"redis": {"enabled": True, "ssl": True}}, "`redis.ssl` (it is `redis.use_tls`)"),
        ({"redis": {"enabled": True, "sentinels": ["a"]}}, "knows neither Sentinel nor a cluster"),
    ],
)
def test_a_key_that_has_another_name_or_place(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    [found] = notes(tmp_path, "unknown_key", homeserver={**WHOLE, **keys})

    assert told in found


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"cache_autotuning": TUNING}, ["nothing limits the memory", "`caches: cache_autotuning`"]),
        ({"caches": TUNING}, ["nothing limits the memory", "`caches: cache_autotuning: max_cache_memory"]),
        ({"global_factor": 2}, ["default factor, 0.5", "`caches: global_factor`"]),
        ({"caches": {"event_cache_size": "10K"}}, ["default size, 10K", "`event_cache_size`"]),
        ({"cache_autotuning": TUNING, "caches": {"cache_autotuning": TUNING}}, []),
        ({"event_cache_size": "10K", "caches": {"global_factor": 2}}, []),
    ],
)
def test_a_key_of_caches_at_the_wrong_level(tmp_path: Path, keys: dict[str, Any], told: list[str]) -> None:
    """It is a finding with its consequence, and not noted again."""
    found = run(*write(tmp_path, homeserver={**WHOLE, **keys}), code=UNWELL if told else WELL)
    wrong = [one for one in found["findings"] if one["kind"] == "misplaced_key"]

    assert bool(told) == bool(wrong)
    assert all(one in f"{wrong[0]['why']} {wrong[0]['remedy']}" for one in told)
    assert not told or [] == [one for one in found["notes"] if one["kind"] == "unknown_key"]


@pytest.mark.parametrize(
    ("caches", "kind", "told"),
    [
        ({"expiry_time": "1h", "expire_caches": True}, "replaced_key", ["`caches: expiry_time` in"]),
        ({"expiry_time": "1h"}, "replaced_key", []),
        ({"cache_entry_ttl": "1h"}, "replaced_key", []),
        (
            {"cache_autotuning": {**TUNING, "target_cache_memory_usage": "3G"}},
            "cache_memory",
            ["is above"],
        ),
        ({"cache_autotuning": TUNING}, "cache_memory", []),
    ],
)
def test_keys_of_caches_that_undo_each_other(
    tmp_path: Path, caches: dict[str, Any], kind: str, told: list[str]
) -> None:
    """Both keys of expiry (matrix-org/synapse#11849), and a target above its limit."""
    found = notes(tmp_path, kind, homeserver={**WHOLE, "caches": caches})

    assert bool(told) == bool(found)
    assert all(one in found[0] for one in told)


def test_settings_of_the_oldest_releases_are_not_known(tmp_path: Path) -> None:
    homeserver = {"server_name": "x", "of_the_oldest": 1}

    assert [] == notes(tmp_path, "unknown_key", "--synapse", "0.25", homeserver=homeserver)


def test_a_key_that_a_finding_names_is_not_noted_again(tmp_path: Path) -> None:
    found = run(*write(tmp_path, homeserver={**WHOLE, "streams_writers": {}}), code=UNWELL)

    assert ["misspelled_key"] == [one["kind"] for one in found["findings"]]
    assert [] == [one for one in found["notes"] if one["kind"] == "unknown_key"]


def test_all_settings_that_are_read_have_their_name_in_the_list() -> None:
    from synrepl.homeserver.configuration import KEYS, MEANT

    assert set() == {*KEYS, *MEANT} - setting_names()


@pytest.mark.parametrize(("factor", "count"), [(0.1, 1), (0, 1), (0.5, 0), (1, 0), ("{{ factor }}", 0)])
def test_a_low_factor(tmp_path: Path, factor: Any, count: int) -> None:
    """Set to save memory, it costs CPU, and memory too (matrix-org/synapse#3939)."""
    files = write(tmp_path, homeserver={**WHOLE, "caches": {"global_factor": factor}})
    found = run(*files, code=3 if isinstance(factor, str) else WELL)

    assert count == sum(one["kind"] == "low_cache_factor" for one in found["notes"])


@pytest.mark.parametrize(("value", "count"), [([], 1), (None, 0), (["remote"], 0), ({}, 0), (["*"], 1)])
def test_an_empty_list_of_servers_lets_nobody(tmp_path: Path, value: Any, count: int) -> None:
    """People write it to let all."""
    config = {**WHOLE, "federation_domain_whitelist": value}

    assert count == len(notes(tmp_path, "federates_with_nobody", homeserver=config))


@pytest.mark.parametrize(
    ("caches", "count"),
    [({"cache_autotuning": TUNING}, 1), ({"cache_autotuning": {}}, 0), ({"global_factor": 1}, 0)],
)
def test_autotuning_needs_jemalloc(tmp_path: Path, caches: Any, count: int) -> None:
    """Without it the limits have no effect, and no line says so."""
    assert count == len(notes(tmp_path, "needs_jemalloc", hs={**WHOLE, "caches": caches}))


def test_what_many_files_have_is_one_note(tmp_path: Path) -> None:
    """A chart renders the shared keys into the file of each of its processes."""
    own = {f"w{number}": {**WORKER, "worker_name": f"w{number}"} for number in range(1, 5)}
    caches = {"caches": {"cache_autotuning": TUNING}}
    told = notes(
        tmp_path,
        "needs_jemalloc",
        hs={**WHOLE, **caches},
        **{key: {**of, **caches} for key, of in own.items()},
    )
    assert 1 == len(told)


@pytest.mark.parametrize(
    ("caches", "release", "count"),
    [
        ({"expire_caches": True, "cache_entry_ttl": "30m"}, "1.63", 1),
        ({"expiry_time": "1h"}, "1.50", 1),
        ({"expire_caches": True}, "1.64", 0),
        ({"expiry_time": "1h"}, "1.43", 0),
        # Only since 1.53 they do without a word (matrix-org/synapse#11641).
        ({"global_factor": 1}, "1.46", 1),
        ({"global_factor": 1}, "1.53", 0),
        ({}, "1.46", 0),
        ({"global_factor": 1}, "1.63", 0),
    ],
)
def test_caches_that_do_not_expire(tmp_path: Path, caches: Any, release: str, count: int) -> None:
    """Although it is set (matrix-org/synapse#13245)."""
    found = notes(tmp_path, "caches_not_expired", "--synapse", release, hs={**WHOLE, "caches": caches})

    assert count == len(found)


@pytest.mark.parametrize(
    ("arguments", "workers", "told"),
    [
        ({"cp_max": 10}, 12, "13 processes may open 130 connections"),
        ({"cp_max": 10}, 8, ""),
        ({}, 20, "21 processes may open 105 connections"),
        ({"cp_max": "{{ pool }}"}, 30, ""),
    ],
)
def test_connections_of_all_processes(
    tmp_path: Path, arguments: dict[str, Any], workers: int, told: str
) -> None:
    """The pool is of each process (spantaleev/matrix-docker-ansible-deploy#4442)."""
    homeserver = {**WHOLE, "database": {"name": "psycopg2", "args": arguments}}
    files = {f"w{n}": {**WORKER, "worker_name": f"w{n}"} for n in range(workers)}
    options = write(tmp_path, homeserver=homeserver, **files)
    found = run(*options, code=3 if arguments.get("cp_max") == "{{ pool }}" else WELL)
    connections = [one["why"] for one in found["notes"] if one["kind"] == "connections"]

    assert bool(told) == bool(connections)
    assert all(told in why for why in connections)


@pytest.mark.parametrize("key", ["outbound_federation_restricted_to", "stream_writers"])
def test_what_else_a_process_lacks_that_the_map_lacks(tmp_path: Path, key: str) -> None:
    """Both are told at once: with the entry alone its requests fail."""
    value: Any = ["w1"] if key.startswith("outbound") else {"events": "w1"}
    listener = {"type": "http", "port": 8080, "resources": [{"names": ["federation"]}]}
    homeserver = {
        **WHOLE,
        key: value,
        "worker_replication_secret": "s",
        "pusher_instances": ["w1"],
    }
    found = run(
        *write(tmp_path, homeserver=homeserver, w1={**WORKER, "worker_listeners": [listener]}), code=UNWELL
    )

    assert ["which `instance_map` lacks", "no listener with the resource replication"] == [
        part
        for one in found["findings"]
        for part in ("which `instance_map` lacks", "no listener with the resource replication")
        if part in one["why"]
    ]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("push", {"jitter_dalay": 10}, "`push.jitter_dalay` (did you mean push.jitter_delay?)"),
        ("presence", {"enable": True}, "`presence.enable` (did you mean presence.enabled?)"),
        ("redis", {"enabled": True, "db": 1}, "`redis.db`"),
        ("caches", {"global_facter": 1}, "`caches.global_facter` (did you mean caches.global_factor?)"),
        ("listeners", [{**REPLICATION, "bind_adresses": []}], "`listeners.bind_adresses` (did"),
        ("retention", {"enabled": True, "default_policy": {}}, ""),
        # What is below these is not known.
        ("experimental_features", {"msc1": True}, ""),
    ],
)
def test_a_key_below_another_that_is_no_setting(tmp_path: Path, key: str, value: Any, told: str) -> None:
    found = notes(tmp_path, "unknown_key", homeserver={**WHOLE, key: value})

    assert bool(told) == bool(found)
    assert all(told in why for why in found)


@pytest.mark.parametrize(("key", "kinds"), [("compress", []), ("cors", ["refused_key"])])
def test_a_resource_with_another_key(tmp_path: Path, key: str, kinds: list[str]) -> None:
    """Releases do not start with one, and show a traceback."""
    resource = {"names": ["replication"], key: True}
    homeserver = {**WHOLE, "listeners": [{**REPLICATION, "resources": [resource]}]}
    found = run(*write(tmp_path, homeserver=homeserver), code=UNWELL if kinds else WELL)

    assert kinds == [one["kind"] for one in found["findings"]]


@pytest.mark.parametrize(
    ("keys", "caches", "told"),
    [
        # matrix-org/synapse#13682: the factor counts for this cache as well.
        (
            {"event_cache_size": "10K"},
            {"global_factor": 2.0},
            "up to 20,480 events: `event_cache_size` (10K) times 2.0",
        ),
        ({}, {"global_factor": 1}, "up to 10,240 events: `event_cache_size` (10K, the default) times 1"),
        ({"event_cache_size": 5000}, {}, "up to 2,500 events: `event_cache_size` (5000) times 0.5"),
        (
            {"event_cache_size": "1M"},
            {"global_factor": 4, "per_cache_factors": {"*getEvent*": 0.25}},
            "up to 262,144 events: `event_cache_size` (1M) times 0.25 (`caches: per_cache_factors: getEvent`",
        ),
        ({}, {}, ""),
        ({}, {"per_cache_factors": {"get_user_by_id": 3}}, ""),
        ({}, {"global_factor": "2"}, ""),
        ({}, {"global_factor": True}, ""),
        ({}, {"global_factor": float("inf")}, ""),
        ({"event_cache_size": "many"}, {"global_factor": 2}, ""),
        ({"event_cache_size": "${SIZE}"}, {"global_factor": "${FACTOR}"}, ""),
    ],
)
def test_how_many_events_are_cached(
    tmp_path: Path, keys: dict[str, Any], caches: dict[str, Any], told: str
) -> None:
    homeserver = {**WHOLE, **keys, "caches": {"expiry_time": "30m", **caches}}
    words = write(tmp_path, homeserver=homeserver)
    result = CliRunner().invoke(main, ["inspect", "--files", "-o", "json", *words])
    found = [one["why"] for one in json.loads(result.stdout)["notes"] if one["kind"] == "event_cache"]

    assert bool(told) == bool(found)
    assert all(f"of each process has {told}" in one for one in found)


def test_processes_may_cache_different_numbers_of_events(tmp_path: Path) -> None:
    """Each with its own file; of releases that were not read nothing is said."""
    homeserver = {**WHOLE, "event_cache_size": "1K"}
    worker = {**WORKER, "event_cache_size": "4K"}

    found = notes(tmp_path, "event_cache", homeserver=homeserver, w1=worker)
    assert ["master has up to 512", "w1 has up to 2,048"] == [
        one.partition("(*getEvent*) of ")[2].partition(" events")[0] for one in found
    ]
    assert [] == notes(tmp_path, "event_cache", "--synapse", "1.20", homeserver=homeserver)
