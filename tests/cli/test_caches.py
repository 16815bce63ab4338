"""``synrepl caches lint``: a worker's registry against what was announced."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from synrepl.cli import main
from tests.cli.test_processes import run
from tests.service.processes import Daemon

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

WORKER = """
from twisted.internet.defer import Deferred
from synrepl.caches.registry import CacheRegistry

print("what a module says when it is imported")


class Worker:
    caches = CacheRegistry(waiter=Deferred)


@Worker.caches.cached()
def get_user_by_id(user_id: str) -> str:
    return user_id


caches = Worker.caches
"""

LONELY = (
    WORKER
    + """

@caches.cached()
def get_nothing_that_anyone_announces(room_id: str) -> str:
    return room_id
"""
)

ROWS = """\
["get_user_by_id",["@a:b"],1]
["get_user_by_id",["@a:b","too","many"],2]
["of_another_worker",null,3]
"""


@pytest.fixture(autouse=True)
def _worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker's modules in the current directory."""
    (tmp_path / "linted_worker.py").write_text(WORKER)
    (tmp_path / "lonely_worker.py").write_text(LONELY)
    (tmp_path / "broken_worker.py").write_text("raise RuntimeError('no configuration\\nfound')")
    (tmp_path / "ending_worker.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("linted_worker", "lonely_worker"):
        sys.modules.pop(name, None)


def recording(path: Path, rows: str = ROWS) -> str:
    """A recorded session with these rows."""
    file = path / "session.txt"
    file.write_text("".join(f"RDATA caches master {n} {row}\n" for n, row in enumerate(rows.splitlines(), 1)))
    return str(file)


def lint(*arguments: str) -> Result:
    """Run it."""
    return CliRunner().invoke(main, ["caches", "lint", *arguments])


def test_unknown_shapes_and_names_are_listed(tmp_path: Path) -> None:
    """What is announced in another shape, and what nobody here knows."""
    result = lint("linted_worker:caches", "--capture", recording(tmp_path))

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "1 cache, 3 invalidations of 2 names seen, interpreted as current",
        (
            "misshapen: get_user_by_id gets keys of a wrong length, each of which empties it: keys of 3"
            " arguments were seen; keys must have 1. Give the function the arguments that writers name, or"
            " declare the cache with tree=True."
        ),
        (
            "unknown: of_another_worker was seen 1 times, but is neither a cache nor an alias of this worker."
            " Ignore this if the worker does not cache it."
        ),
    ]


def test_a_registry_with_known_names_lists_nothing(tmp_path: Path) -> None:
    """A registry of which everything is known."""
    result = lint("linted_worker:Worker.caches", "--capture", recording(tmp_path, ROWS.splitlines()[0]))

    assert (0, "no findings") == (result.exit_code, result.stdout.splitlines()[-1])


def test_a_cache_that_nothing_reaches(tmp_path: Path) -> None:
    """In JSON, on a standard output that holds nothing else."""
    result = lint("lonely_worker:caches", "--capture", recording(tmp_path, ROWS.splitlines()[0]), "--json")

    assert result.exit_code == 1
    assert [("no-route", "get_nothing_that_anyone_announces")] == [
        (one["kind"], one["cache"]) for one in json.loads(result.stdout)
    ]
    assert set(json.loads(result.stdout)[0]) == {"kind", "cache", "text"}


def test_a_real_session() -> None:
    """Whatever a real master announced can be read."""
    result = lint("linted_worker:caches", "--capture", str(GOLDEN / "redis" / "rows.txt"))

    assert result.stdout.startswith("1 cache, 111 invalidations of ")


def test_an_alias_with_keys_that_it_does_not_take(tmp_path: Path) -> None:
    """A writer of another release."""
    result = lint("linted_worker:caches", "--capture", recording(tmp_path, '["cs_cache_fake",[],1]'))

    assert "misshapen: The alias cs_cache_fake had unsupported keys 1 times" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["no_such_worker:caches"], 2, "No module named 'no_such_worker'"),
        (["broken_worker:caches"], 2, "RuntimeError: no configuration found"),
        (["ending_worker:caches"], 2, "SystemExit: 7"),
        (["linted_worker:nothing"], 2, "has no attribute 'nothing'"),
        (["linted_worker:get_user_by_id"], 2, "is of type function, not CacheRegistry"),
        (["linted_worker"], 2, "is not MODULE:ATTRIBUTE"),
        ([], 2, "Missing argument"),
        (["linted_worker:caches", "--url", "http://127.0.0.1:1", "--capture", "x"], 2, "exclude each other"),
        (["linted_worker:caches", "--url", "http://127.0.0.1:1"], 1, "Connection refused"),
        (["linted_worker:caches", "--capture", "/no/such"], 1, "cannot read /no/such"),
    ],
)
def test_trouble_and_wrong_usage(arguments: list[str], code: int, said: str) -> None:
    """Without a traceback."""
    result = lint(*arguments)

    assert code == result.exit_code
    assert said in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_announced_invalidations_are_read_from_the_changelog(tmp_path: Path) -> None:
    """From its changelog, all of it."""
    with Daemon(tmp_path) as daemon:
        run(tmp_path, "append", "caches", "--url", daemon.url, stdin=ROWS * 200)
        run(tmp_path, "append", "push_rules", "--url", daemon.url, stdin='["@a:b"]\n')
        result = run(tmp_path, "caches", "lint", "linted_worker:caches", "--url", daemon.url)

    assert result.returncode == 1
    assert result.stdout.splitlines()[0].startswith("1 cache, 600 invalidations of 2 names seen")
    assert result.stderr == "what a module says when it is imported\n"
