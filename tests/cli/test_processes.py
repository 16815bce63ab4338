"""The command line against a real daemon."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synrepl.http_api.routes import DECLARE
from synrepl.http_client import BlockingClient
from tests.processes.loading import changelog
from tests.service.processes import ROOT, Daemon, Process

GOLDEN = ROOT / "tests" / "golden"


def tail(folder: Path, daemon: Daemon, *arguments: str) -> Process:
    """``synrepl tail`` over the line protocol."""
    return Process("-m", "synrepl", "tail", daemon.follow, "--http", daemon.url, *arguments, cwd=folder)


def run(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "synrepl", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def append(folder: Path, daemon: Daemon, *users: str) -> subprocess.CompletedProcess[str]:
    """A fact of push_rules for each of these users."""
    rows = "".join(json.dumps([user]) + "\n" for user in users)
    return run(folder, "append", "push_rules", "--url", daemon.url, stdin=rows)


def told(lines: list[str], kind: str = "rdata") -> list[dict[str, Any]]:
    """The lines of this type."""
    return [found for line in lines if (found := json.loads(line))["type"] == kind]


def users(process: Process) -> list[str]:
    """Whose push rules changed."""
    return [line["rows"][0][0] for line in told(process.lines)]


@pytest.mark.story
def test_appended_facts_are_tailed_over_all_transports(tmp_path: Path) -> None:
    """In at one end, out at the other, at both kinds of worker and over HTTP."""
    with Daemon(tmp_path) as daemon:
        with (
            tail(tmp_path, daemon, "--exit-after", "2") as current,
            tail(tmp_path, daemon, "--exit-after", "2", "--dialect", "legacy") as legacy,
            Process("-m", "synrepl", "tail", daemon.url, "--exit-after", "2", cwd=tmp_path) as over_http,
        ):
            for follower in (current, legacy):
                follower.wait_for('"stream":"push_rules"')
            over_http.wait_for('"type":"server"')
            answer = append(tmp_path, daemon, "@a:b", "@c:d")

            assert [follower.wait() for follower in (current, legacy, over_http)] == [0, 0, 0]

    assert answer.stdout.splitlines() == ['{"serial":1,"token":1}', '{"serial":2,"token":2}']
    for follower in (current, legacy):
        assert told(follower.lines) == [
            {"type": "rdata", "stream": "push_rules", "writer": "master", "token": 1, "rows": [["@a:b"]]},
            {"type": "rdata", "stream": "push_rules", "writer": "master", "token": 2, "rows": [["@c:d"]]},
        ]
    assert [(line["serial"], line["rows"]) for line in told(over_http.lines)] == [
        (1, [["@a:b"]]),
        (2, [["@c:d"]]),
    ]
    assert told(current.lines, "server") == [{"type": "server", "name": "localhost"}]


def test_a_tail_with_state_goes_on_exactly(tmp_path: Path) -> None:
    """Stopped by itself, by a signal, and with the daemon restarted in between: each fact once, in order."""
    printed: list[str] = []
    with Daemon(tmp_path) as daemon:
        append(tmp_path, daemon, "@1", "@2", "@3", "@4")
        with tail(tmp_path, daemon, "--state", "s", "--from", "earliest", "--exit-after", "3") as first:
            assert first.wait() == 0
            printed += users(first)
        append(tmp_path, daemon, "@5")
        with tail(tmp_path, daemon, "--state", "s") as second:
            second.wait_for('"rdata"', 2)
            assert second.terminate() == 0
            printed += users(second)
    with Daemon(tmp_path) as daemon:
        append(tmp_path, daemon, "@6")
        with tail(tmp_path, daemon, "--state", "s", "--exit-after", "1") as third:
            assert third.wait() == 0
            printed += users(third)

    assert printed == ["@1", "@2", "@3", "@4", "@5", "@6"]


def test_a_tail_of_the_changelog_goes_on_exactly(tmp_path: Path) -> None:
    """The same over HTTP."""
    command = ("-m", "synrepl", "tail", "--state", "s", "--from", "earliest", "--exit-after")
    with Daemon(tmp_path) as daemon:
        append(tmp_path, daemon, "@1", "@2", "@3")
        with Process(*command, "2", daemon.url, cwd=tmp_path) as first:
            assert first.wait() == 0
        with Process(*command, "1", daemon.url, cwd=tmp_path) as second:
            assert second.wait() == 0

    assert [*users(first), *users(second)] == ["@1", "@2", "@3"]
    saved = json.loads((tmp_path / "s").read_text())
    assert len(saved.pop("digest")) == len(saved.pop("check")) == 64
    assert saved == {"version": 1, "serial": 3, "epoch": 1}


def test_two_tails_do_not_share_a_state(tmp_path: Path) -> None:
    """The second is told who has it."""
    with Daemon(tmp_path) as daemon, tail(tmp_path, daemon, "--state", "s") as first:
        first.wait_for('"position"')
        with tail(tmp_path, daemon, "--state", "s") as second:
            assert second.wait() == 1

    assert ["Error: open failed: process", "uses s.lock"] == [
        second.lines[0][:27],
        second.lines[0].split(" (")[0][-11:],
    ]


def test_a_torn_state_is_an_error(tmp_path: Path) -> None:
    """Not a fresh start."""
    (tmp_path / "s").write_text('{"version":1,"posit')

    answer = run(tmp_path, "tail", "localhost:1", "--state", "s")

    assert answer.returncode == 1
    assert "not a file of positions" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_closed_pipe_ends_a_tail_quietly(tmp_path: Path) -> None:
    """As in ``synrepl tail ... | head``."""
    with Daemon(tmp_path) as daemon:
        process = subprocess.Popen(
            [sys.executable, "-m", "synrepl", "tail", daemon.follow],
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        while b"user_signature" not in process.stdout.readline():
            pass
        process.stdout.close()
        append(tmp_path, daemon, "@a:b")
        said = process.stderr.read()
        process.stderr.close()

        assert (0, b"") == (process.wait(60), said)


def test_a_bad_row_ends_an_append_after_what_came_before_it(tmp_path: Path) -> None:
    """And its line is named, whoever found it."""
    with Daemon(tmp_path) as daemon:
        ours = run(
            tmp_path, "append", "push_rules", "--url", daemon.url, stdin='["@a:b"]\n\nnonsense\n["@c:d"]\n'
        )
        theirs = run(tmp_path, "append", "push_rules", "--url", daemon.url, stdin='["@a:b"]\n["@c:d", 5]\n')
        unknown = run(tmp_path, "append", "no_such", "--url", daemon.url, stdin='["@a:b"]\n')

    assert (ours.returncode, ours.stdout) == (1, '{"serial":1,"token":1}\n')
    assert ours.stderr.startswith("Error: line 3: not a JSON array")
    assert "; 1 facts were stored before" in ours.stderr
    assert (theirs.returncode, theirs.stdout) == (1, '{"serial":2,"token":2}\n')
    assert theirs.stderr.startswith("Error: line 2: ")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)


def test_a_replayed_session_comes_out_at_both_ages_of_workers(tmp_path: Path) -> None:
    """Every row that a worker's release knows, ephemeral streams included."""
    path = str(GOLDEN / "current" / "session-all.txt")
    with Daemon(tmp_path) as daemon, tail(tmp_path, daemon) as follower:
        follower.wait_for('"stream":"user_signature"')
        answer = run(tmp_path, "replay", path, "--url", daemon.url, "--json")
        summary = json.loads(answer.stdout)
        follower.wait_for('"rdata"', summary["facts"])
        rows = sum(len(line["rows"]) for line in told(follower.lines))
        listed = json.loads(run(tmp_path, "streams", "--url", daemon.url, "--json").stdout)
        shown = run(tmp_path, "status", "--url", daemon.url).stdout

    assert (0, 1495, 1495) == (answer.returncode, summary["rows"], rows)
    assert listed["typing"]["kept"] is False
    assert listed["push_rules"]["writers"] == {"master": summary["streams"]["push_rules"]["facts"]}
    assert "serving" in shown
    assert "synrepl-tail" in shown or "follower" in shown


def test_a_whole_changelog_is_replayed_once(tmp_path: Path) -> None:
    """Its stream is declared first, facts of a daemon's own state are skipped, and a repeat adds nothing."""
    lines = [
        ("push_rules", [["@before:h"]]),
        ("declarations", [["nums", ["k"], "kept", {"k": "str", "i": "int"}, []]]),
        ("nums", [["a", 1]]),
        ("promises", [["acks", ["1"], [["u", "paris", "tcp:h:1 http://h:2"]]]]),
        ("atomic_appends", [[1]]),
        ("push_rules", [["@after:h"]]),
    ]
    path = tmp_path / "changelog.ndjson"
    path.write_text(
        "".join(json.dumps({"stream": name, "writer": "w", "rows": rows}) + "\n" for name, rows in lines)
    )
    with Daemon(tmp_path) as daemon:
        answers = [run(tmp_path, "replay", str(path), "--url", daemon.url, "--json") for _ in range(2)]
        again = run(tmp_path, "replay", str(path), "--url", daemon.url, "--name", "again")
        found = [(fact.stream, fact.writer, json.loads(fact.rows)) for fact in changelog(daemon.url)]

    replayed = [(name, "w", rows) for name, rows in lines if name in ("push_rules", "nums")]
    assert [*replayed, *replayed] == found[1:]
    assert ("declarations", lines[1][1]) == (found[0][0], found[0][2])
    assert [0, 0, 0] == [one.returncode for one in (*answers, again)]
    assert {"atomic_appends": 1, "promises": 1} == json.loads(answers[1].stdout)["skipped"]
    assert "skipped 1 facts of promises" in answers[0].stderr


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"key": "k", "columns": {"k": "str", "j": "int"}}, "the daemon has another declaration of nums"),
        ({"key": "k", "columns": {"k": "str", "i": "int"}, "writers": ["v"]}, "only v may write it"),
    ],
    ids=["other-columns", "other-writers"],
)
def test_a_replay_that_would_be_refused_stores_nothing(
    tmp_path: Path, declared: dict[str, Any], why: str
) -> None:
    """Not even the facts before the one that is refused."""
    path = tmp_path / "changelog.ndjson"
    lines = [("push_rules", [["@a:h"]]), ("nums", [["a", 1]])]
    if "writers" not in declared:
        lines.insert(0, ("declarations", [["nums", ["k"], "kept", {"k": "str", "i": "int"}, []]]))
    path.write_text(
        "".join(json.dumps({"stream": name, "writer": "w", "rows": rows}) + "\n" for name, rows in lines)
    )
    with Daemon(tmp_path) as daemon:
        client = BlockingClient(daemon.url)
        client.json(DECLARE.request(), json.dumps({"name": "nums", **declared}).encode())
        answer = run(tmp_path, "replay", str(path), "--url", daemon.url)
        found = [fact.stream for fact in changelog(daemon.url)]

    assert (1, ["declarations"]) == (answer.returncode, found)
    assert why in answer.stderr


def test_a_replay_with_a_bad_row_says_so_and_goes_on(tmp_path: Path) -> None:
    """One odd row is no reason to lose the others, but none to keep quiet either."""
    path = tmp_path / "odd.txt"
    path.write_text(
        'RDATA push_rules master 1 ["@a:b"]\n'
        "RDATA push_rules master 2 7\n"
        'RDATA push_rules master 3 ["@c:d"]\n'
    )
    with Daemon(tmp_path) as daemon:
        answer = run(tmp_path, "replay", str(path), "--url", daemon.url, "--json")

    assert (1, 2) == (answer.returncode, json.loads(answer.stdout)["facts"])
    assert "line 2: skipped a row of push_rules" in answer.stderr
