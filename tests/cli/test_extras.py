"""Commands where no extra is installed: each says which one it needs, in one line."""

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Final

import pytest

from synrepl.cli import main
from synrepl.extras import EXTRAS

PROGRAM: Final = """
import json, sys

names, *commands = json.loads(sys.argv[1])


class Hiding:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in names else self._finder.find_spec(name, *more)

    def __getattr__(self, name):
        return getattr(self._finder, name)


sys.meta_path[:] = [Hiding(one) for one in sys.meta_path]
from click.testing import CliRunner

from synrepl.cli import main

for command in commands:
    result = CliRunner().invoke(main, command)
    is_exit = result.exception is None or isinstance(result.exception, SystemExit)
    print(json.dumps([result.exit_code, is_exit, result.output]))
"""

NOBODY: Final = "http://127.0.0.1:1"
POSTGRES: Final = "postgresql://a@127.0.0.1:1/x"
NEED: Final = {"tail redis://127.0.0.1:1 --server-name x": "redis"}
"""Commands that need an extra, and which."""


def run(*commands: list[str]) -> list[tuple[int, bool, str]]:
    """Exit code, whether it ended in words, and output of each."""
    given = json.dumps([list(EXTRAS), *commands])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, given], capture_output=True, text=True, timeout=120, check=True
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def check_needed(needed: Mapping[str, str], folder: Path) -> None:
    """Assert that each of these commands says which extra to install, with a failure and no traceback."""
    words = [command.format(folder=folder).split() for command in needed]

    for (code, is_exit, output), (command, extra) in zip(run(*words), needed.items(), strict=True):
        assert is_exit, command
        assert code in (1, 2), command
        assert f"pip install 'synrepl[{extra}]'" in output.splitlines()[-1], command
        # The pipeline is one of Spark: its extra is named first.
        leads = "spark" if extra == "archive" else extra
        assert leads == output.splitlines()[-1].partition("synrepl[")[2].partition("]")[0], command


def test_a_command_without_its_extra_says_which_to_install(tmp_path: Path) -> None:
    """With a failure, and never with a traceback."""
    check_needed(NEED, tmp_path)


def test_every_command_can_be_imported_without_extras() -> None:
    """Its help needs none."""
    words = [[name, "--help"] for name in main.places]

    assert [(0, True)] * len(words) == [(code, is_exit) for code, is_exit, _ in run(*words)]


@pytest.mark.parametrize("option", ["--redis", "--database"])
def test_a_daemon_without_its_extra_says_which_to_install(option: str, tmp_path: Path) -> None:
    """And does not fail a second time while it stops."""
    given = {"--redis": "redis://127.0.0.1:1", "--database": f"sqlite:{tmp_path}/log.db"}
    extra = "redis"
    if option == "--database":
        given, extra = {"--database": POSTGRES}, "postgres"
    words = ["serve", "--server-name", "x", "--log-file", str(tmp_path / "log")]
    words += [word for pair in given.items() for word in pair]
    words += [word for name in ("listen", "http") for word in (f"--{name}", "tcp:0:interface=127.0.0.1")]
    program = PROGRAM.partition("from click.testing")[0] + "from synrepl.cli import main; main(commands[0])"
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([list(EXTRAS), words])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode in (1, 2)
    assert f"pip install 'synrepl[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_extras_have_these_libraries() -> None:
    """As setup.py names them."""
    known = requires("synrepl") or []
    for library, extra in EXTRAS.items():
        name = {"py4j": "pyspark"}.get(library, library.removesuffix("_binary"))
        assert any(one.startswith(name) and f'extra == "{extra}"' in one for one in known), library
