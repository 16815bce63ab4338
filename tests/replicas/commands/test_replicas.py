"""Replicas on the command line, with real daemons."""

import json
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from scripts.staging import Stage
from synrepl.cli import main
from synrepl.replicas.commands.roles import WHAT_TO_DO
from synrepl.replicas.commands.tables import status_tables
from synrepl.replicas.error_codes import REFUSALS
from synrepl.replicas.relay.relay_states import RelayState
from synrepl.replicas.relay.replica_registry import REPLICA_STATES
from synrepl.replicas.replica.replica_states import ReplicaState
from synrepl.replication.status import states
from synrepl.storage.schema import NOTES
from tests.service.processes import ROOT, Daemon, Process

MANUAL = ROOT / "docs" / "howto" / "replicas.md"


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A place for daemons."""
    with Stage() as made:
        yield made


def run(*arguments: str, stdin: str = "") -> Result:
    """``synrepl``, in this process."""
    return CliRunner().invoke(main, arguments, input=stdin)


def pair(stage: Stage) -> tuple[Daemon, Daemon]:
    """A primary with 20 facts, and its replica."""
    berlin = stage.start("berlin")
    stage.append(berlin, 20)
    paris = stage.replica("paris", f"tcp:{berlin.follow}")
    stage.wait_live(paris)
    return berlin, paris


def names(found: list[dict[str, Any]]) -> dict[str, str]:
    """The states of replicas by their names."""
    return {one["name"]: one["state"] for one in found}


def test_leases_are_listed_added_and_dropped(stage: Stage) -> None:
    """And the list of replicas shows the same."""
    berlin, paris = pair(stage)

    added = run("leases", "add", "lisbon", "--url", berlin.url)
    listed = json.loads(run("leases", "--url", berlin.url, "--json").stdout)
    shown = run("leases", "list", "--url", berlin.url)

    assert added.stdout == "facts after serial 20 are retained for lisbon\n"
    assert {one["name"] for one in listed} == {"paris", "lisbon"}
    assert "lisbon" in shown.stdout
    assert run("leases", "add", "lisbon", "--url", berlin.url).exit_code == 1
    assert run("leases", "drop", "nobody", "--url", berlin.url).exit_code == 1
    assert run("replicas", "--url", berlin.url, "--check").exit_code == 0

    dropped = run("leases", "drop", "paris", "--url", berlin.url)

    assert "paris is dropped" in dropped.stdout
    status = stage.wait_until(
        paris, lambda status: status["upstream"]["state"] == "refused", "no more service"
    )
    assert status["state"] == "behind"
    assert "the upstream refuses: unknown" in status["errors"][0]["what"]
    assert names(json.loads(run("replicas", "--url", berlin.url, "--json").stdout))["paris"] == "ended"
    assert run("replicas", "--url", berlin.url, "--check").exit_code == 1


@pytest.mark.parametrize("arguments", [["add"], ["drop"], ["list", "x"], ["burn"]])
def test_a_lease_wants_a_name_where_it_makes_sense(arguments: list[str]) -> None:
    """Wrong usage, and nobody is asked."""
    assert run("leases", *arguments, "--url", "http://127.0.0.1:1").exit_code == 2


@pytest.mark.story
def test_a_replica_is_promoted_and_the_old_primary_rejoins(stage: Stage) -> None:
    """The whole of a failover, as an operator types it; what only the old one had is in a file."""
    berlin, paris = pair(stage)
    berlin = stage.list_as_primary("berlin", berlin, paris)
    refused = run("promote", "--url", berlin.url)
    stage.stop(paris)
    stage.append(berlin, 4)
    berlin.kill()
    stage.go_on(paris)
    away = run("promote", "--url", paris.url, "--json")

    forced = run("promote", "--url", paris.url, "--force", "--json")
    assert forced.exit_code == 0
    promoted = json.loads(forced.stdout)
    # What had come before the cut may be anything from none to all of the four.
    stage.append(paris, 1)
    berlin = stage.start("berlin", "--upstream", paris.url, at=berlin)
    stage.wait_until(berlin, lambda status: status["role"] == "fenced", "fenced")
    unasked = run("resync", "--url", berlin.url)
    rejoined = run("resync", "--url", berlin.url, "--yes", "--json")

    assert (1, True) == (refused.exit_code, "only a replica can be promoted" in refused.stderr)
    assert WHAT_TO_DO["not_a_replica"] in refused.stderr
    assert (1, "upstream_away") == (away.exit_code, json.loads(away.stdout)["error"])
    assert json.loads(away.stdout)["what_to_do"] == WHAT_TO_DO["upstream_away"]
    assert (promoted["role"], promoted["epoch"]) == ("primary", 3)
    assert (2, True) == (unasked.exit_code, "use --yes" in unasked.stderr)
    assert "another daemon is primary since epoch 3" in rejoined.stderr
    told = json.loads(rejoined.stdout)
    assert told["state"] == "live"
    assert len(told["only_here"]) == (1 if promoted["serial"] < 24 else 0)
    assert run("resync", "--url", berlin.url, "--yes").exit_code == 1


def test_what_only_the_old_primary_had_is_named_and_posted_again(stage: Stage) -> None:
    """Also where the replica that takes over never met the primary in its present life."""
    berlin, paris = pair(stage)
    berlin = stage.list_as_primary("berlin", berlin, paris)
    paris.terminate()
    stage.append(berlin, 5)
    berlin.kill()
    paris = stage.replica("paris", f"tcp:{berlin.follow}", at=paris)
    assert (
        run("promote", "--force", "--url", paris.url).stdout
        == "primary in epoch 3, which begins after serial 20\n"
    )
    stage.append(paris, 2)

    berlin = stage.start("berlin", "--upstream", paris.url, at=berlin)
    stage.wait_until(berlin, lambda status: status["role"] == "fenced", "fenced")
    rejoined = json.loads(run("resync", "--url", berlin.url, "--yes", "--json").stdout)
    path = stage.folder / "berlin" / "synrepl.db.only-here-2-21-25.ndjson"
    replayed = json.loads(run("replay", str(path), "--url", paris.url, "--json").stdout)

    assert rejoined == {"only_here": [str(path)], "state": "live", "serial": 22}
    assert replayed["facts"] == 5
    stage.wait_until(berlin, lambda status: status["serial"] == 27, "what was posted again")


def test_a_daemon_that_is_fenced_and_should_not_be_is_promoted_by_force(stage: Stage) -> None:
    """Its status, a refused write and a refused promotion name the command, which explains and asks first."""
    berlin = stage.start("berlin")
    stage.append(berlin, 20)
    berlin.terminate()
    with sqlite3.connect(stage.folder / "berlin" / "synrepl.db") as database:
        NOTES.put(database, [("role", '{"role":"fenced","epoch":7}')])
    database.close()
    berlin = stage.start("berlin", at=berlin)

    shown = run("status", "--url", berlin.url)
    written = run("append", "push_rules", "--url", berlin.url, stdin='["@ada:hs"]\n')
    refused = run("promote", "--url", berlin.url)
    unasked = run("promote", "--force", "--url", berlin.url)
    promoted = run("promote", "--force", "--yes", "--url", berlin.url)
    again = run("promote", "--force", "--yes", "--url", berlin.url)

    for text in (shown.stdout, written.stderr, refused.stderr):
        assert "synrepl promote --force" in " ".join(text.split())
        assert "synrepl resync" in text
    assert (1, True) == (
        refused.exit_code,
        "fenced: another daemon is primary since epoch 7" in refused.stderr,
    )
    assert (2, True) == (unasked.exit_code, "use --yes" in unasked.stderr)
    assert "This daemon is at serial 20 of epoch 1." in promoted.stderr
    assert "its address is unknown" in promoted.stderr
    assert (0, "primary in epoch 8, which begins after serial 20\n") == (promoted.exit_code, promoted.stdout)
    assert (1, True) == (again.exit_code, "only a replica can be promoted" in again.stderr)
    assert run("append", "push_rules", "--url", berlin.url, stdin='["@ada:hs"]\n').exit_code == 0


def test_facts_that_replicas_acknowledged_are_not_given_up(stage: Stage) -> None:
    """By whom they are lacked, who has them, and how to give them up all the same."""
    berlin, paris = pair(stage)
    oslo = stage.replica("oslo", f"tcp:{berlin.follow}")
    stage.wait_live(oslo)
    row, to_berlin = '["@ada:hs"]\n', ("append", "push_rules", "--url", berlin.url, "--no-retry")
    assert run(*to_berlin, "--acks", "1", stdin=row).exit_code == 0
    oslo.kill()
    assert json.loads(run(*to_berlin, "--acks", "1", stdin=row).stdout)["token"] == 22
    timed_out = run(*to_berlin, "--acks", "2", "--acks-timeout", "3s", stdin=row)
    assert timed_out.exit_code == 1
    assert "1 replica (paris); acks=2 was asked for" in timed_out.stderr
    berlin.kill()
    oslo = stage.replica("oslo", f"tcp:{berlin.follow}", at=oslo)

    refused = run("promote", "--url", oslo.url, "--force")
    in_json = run("promote", "--url", oslo.url, "--force", "--json")

    assert (1, 1) == (refused.exit_code, in_json.exit_code)
    assert "push_rules master 22" in refused.stderr
    assert WHAT_TO_DO["others_ahead"] in refused.stderr
    assert ["paris"] == [one["name"] for one in json.loads(in_json.stdout)["ahead"]]
    assert run("promote", "--url", oslo.url, "--lose-acknowledged").exit_code == 2
    paris.kill()
    silent = run("promote", "--url", oslo.url, "--force")
    assert "silent: paris (" in silent.stderr
    assert WHAT_TO_DO["replicas_silent"] in silent.stderr
    assert run("promote", "--url", oslo.url, "--force", "--lose-acknowledged").exit_code == 0


def test_missing_files_are_named(stage: Stage) -> None:
    """An operator decides by what they are."""
    _, paris = pair(stage)
    stage.put_name(stage.daemons["berlin"], "media/lost.png", "ab" * 32)
    stage.wait_until(paris, lambda status: status["serial"] == 21, "the name")

    result = run("promote", "--url", paris.url)

    assert result.exit_code == 1
    assert f"missing: media/lost.png ({'ab' * 32})" in result.stderr
    assert WHAT_TO_DO["files_missing"] in result.stderr


def test_status_shows_a_replica(stage: Stage) -> None:
    """Both ends of it."""
    berlin, paris = pair(stage)

    above, below = run("status", "--url", berlin.url), run("status", "--url", paris.url)

    assert re.search(r"paris\s.*live", above.stdout)
    assert re.search(r"role\s+replica", below.stdout)
    assert "upstream" in below.stdout


def test_status_tells_the_truth_when_it_matters(stage: Stage) -> None:
    """Where a replica over HTTP is, and since when a daemon is fenced."""
    berlin, paris = pair(stage)
    oslo = stage.replica("oslo", berlin.url)
    stage.wait_live(oslo)
    found = {one["name"]: one for one in stage.wait_until(berlin, bool, "status")["replicas"]}
    assert oslo.url in found["oslo"]["address"]

    run("promote", "--url", paris.url)
    first = stage.wait_until(berlin, lambda status: status["role"] == "fenced", "fenced")
    again = stage.wait_until(berlin, lambda status: status["uptime_seconds"] > 1, "a second")

    assert first["errors"][0]["since"] == again["errors"][0]["since"]


def test_status_is_watched(stage: Stage) -> None:
    """Again and again, also through a restart of the daemon."""
    berlin = stage.start("berlin")
    arguments = ("status", "--watch", "--json", "--interval", "0.1", "--url", berlin.url)
    with Process("-m", "synrepl", *arguments, cwd=stage.folder) as watch:
        watch.wait_for('"state": "serving"', times=2)
        berlin.terminate()
        watch.wait_for('"error": ')
        stage.start("berlin", at=berlin)
        seen = len(watch.lines)
        watch.wait_until(lambda lines: any('"state": "serving"' in line for line in lines[seen:]))


WORDS = {
    "daemon": {word: one.means for word, one in states().items()},
    "upstream": {state.value: state.means for state in ReplicaState},
    "replica": REPLICA_STATES,
    "relay": {state.value: state.means for state in RelayState},
}


@pytest.mark.parametrize("kind", WORDS)
def test_the_manual_tells_what_each_word_means(kind: str) -> None:
    """The same words, in the same order, as the program says them."""
    text = MANUAL.read_text("utf-8")

    rows = [f"| `{word}` | {means} |" for word, means in WORDS[kind].items()]

    assert "\n".join(rows) in text


def test_the_manual_has_every_refusal() -> None:
    """Otherwise: python scripts/docs_refusals.py."""
    text = MANUAL.read_text("utf-8")

    assert sorted(REFUSALS) == sorted(re.findall(r"^### `(\w+)`$", text, re.MULTILINE))
    for kind in REFUSALS.values():
        assert f"{kind.means[0].upper()}{kind.means[1:]}. " in text


def test_backups_are_listed_in_the_status() -> None:
    """With their age, by which an operator sees that a timer has stopped."""
    backups = [
        {"name": "nightly", "serial": 29, "age_seconds": 9_000.0, "is_connected": False},
        {"name": "vault", "serial": 31, "age_seconds": 0.0, "is_connected": True},
    ]

    lines = [line for table in status_tables({"backups": backups}, 0.0, is_wide=False) for line in table]

    shown = [" ".join(line.split()) for line in click.unstyle("\n".join(lines)).splitlines()]
    assert shown == ["backup state serial age", "nightly away 29 2 h 30 min", "vault connected 31 0 s"]
