"""500 configurations are read, and refused, as real releases read and refuse them.

The answers are of `HomeServerConfig.load_config` (tests/interop/test_configurations.py). Compared is what
is of the keys that are read here; what every release asks for besides was given.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from synrepl.homeserver.addresses import instances_of
from synrepl.homeserver.configuration import KEYS, read_homeserver, redis_settings
from synrepl.homeserver.duties import DUTIES, STREAM_WRITERS, stream_writers
from synrepl.homeserver.merging import MAIN, ProcessConfig, merge_files
from synrepl.homeserver.refusals import find_refusals, refused_by
from synrepl.wire.dialect import Dialect, Release
from tests.homeserver.configurations import COUNT, Configuration, configurations, read_answers

REDIS_SINCE = {"path": (1, 85, 0), "dbid": (1, 78, 0), "username": (1, 162, 0), "use_tls": (1, 84, 0)}


def our_answer(config: ProcessConfig, release: Release) -> dict[str, Any]:
    """What we say of a process, as the releases do."""
    refused = refused_by(find_refusals(config), release)
    if any(one.kind != "refused_at_start" for one in refused):  # they read these
        return {"accepted": False}
    redis = redis_settings(config)
    writers = stream_writers(config)
    return {
        "accepted": True,
        "name": config.name,
        "redis": redis
        and {
            "host": redis.host,
            "port": redis.port,
            "path": redis.path or None,
            "dbid": redis.dbid,
            "username": redis.username or None,
            "use_tls": redis.is_tls,
        },
        "writers": {
            key: list(writers.get(key, (MAIN,)))
            for key, one in STREAM_WRITERS.items()
            if release in one.known
        },
        "instances": {
            name: ":".join(filter(None, map(str, where)))
            for name, where in instances_of(config, release).items()
        },
        "duties": {one.name: one.has(config, release) for one in DUTIES},
    }


def differences(ours: dict[str, Any], theirs: dict[str, Any], release: Release) -> Iterator[str]:
    """Where the two differ, in words. What a release does not say of itself is left out."""
    if ours["accepted"] is not theirs["accepted"]:
        yield f"accepted {ours['accepted']}, not {theirs['accepted']} {theirs.get('why', '')}"
    if not (ours["accepted"] and theirs["accepted"]):
        return
    for key in ("name", "writers", "instances"):
        if ours[key] != theirs[key]:
            yield f"{key} {ours[key]}, not {theirs[key]}"
    for duty, has in theirs["duties"].items():
        if ours["duties"][duty] is not has:
            yield f"{duty} {ours['duties'][duty]}, not {has}"
    if (ours["redis"] is None) is not (theirs["redis"] is None):
        yield f"Redis {ours['redis']}, not {theirs['redis']}"
    for name, value in (theirs["redis"] or {}).items():
        if release >= REDIS_SINCE.get(name, (0, 0, 0)) and (value or None) != (ours["redis"][name] or None):
            yield f"redis.{name} {ours['redis'][name]}, not {value}"


def compare(one: Configuration, answers: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    """All differences of one configuration."""
    one.write(folder, {})
    # A file of a process is known by its path; the main process without one by the shared ones.
    merged = merge_files([folder / name for name in one.order], KEYS)
    by_file = {config.file.removeprefix(f"{folder}/"): config for config in merged.processes}
    main = next((config for file, config in by_file.items() if file not in one.own), None)
    found = []
    for release, of in answers.items():
        number = Dialect.parse(release).release
        for own, theirs in of.items():
            config = by_file.get(own, main)
            assert config is not None
            ours = our_answer(config, number)
            found += [f"{release} {own or 'main'}: {why}" for why in differences(ours, theirs, number)]
    return found


def test_configurations_are_read_as_releases_read_them(tmp_path: Path) -> None:
    """None of them differs."""
    found = {}
    for number, (one, answers) in enumerate(read_answers()):
        folder = tmp_path / str(number)
        folder.mkdir()
        if wrong := compare(one, answers, folder):
            found[number] = wrong
    assert {} == found


def test_enough_kinds_of_configurations_are_kept() -> None:
    """Many are refused, split over files, or both."""
    kept = list(read_answers())
    refused = [
        one
        for one, answers in kept
        if any(not said["accepted"] for of in answers.values() for said in of.values())
    ]
    accepted = [one for one, answers in kept if all(said["accepted"] for said in answers["1.163.2"].values())]

    assert COUNT == len(kept)
    assert len(refused) >= 100
    assert len(accepted) >= 50
    assert 100 <= len([one for one, _ in kept if len(one.files) >= 3])


@pytest.mark.parametrize("as_workers", [False, True])
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(one=configurations())
def test_the_option_of_a_file_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, as_workers: bool, one: Configuration
) -> None:
    """Each is read, and the same whether a file is named as the homeserver's or as a worker's."""
    folder = tmp_path_factory.mktemp("files")
    one.write(folder, {})
    files = [folder / name for name in one.order]
    at = 1 if as_workers else len(files) - 1
    first, second = read_homeserver(files), read_homeserver(files[:at], files[at:])

    names = ("database", "writers", "named", "instances", "notes")
    assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]
    assert [(one.name, one.duties, one.writes) for one in first.processes] == [
        (one.name, one.duties, one.writes) for one in second.processes
    ]
