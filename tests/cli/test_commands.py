"""The command line where no daemon is needed: usage, exit codes, one line for each mistake."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from synrepl.cli import main
from synrepl.cli.command import LazyGroup

COMMANDS = sorted(main.places)
NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_tells_the_exit_codes(command: str) -> None:
    """Scripts rely on them."""
    result = CliRunner().invoke(main, [*filter(None, [command]), "--help"])

    assert result.exit_code == 0
    assert "Exit codes: 0" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail"],
        ["tail", "nonsense:here:and:there"],
        ["tail", "localhost:9092", "--dialect", "curent"],
        ["tail", "localhost:9092", "--dialect", "native"],
        ["tail", "localhost:9092", "--from", "middle"],
        ["append", "typing"],
        ["replay"],
        ["status", "--nonsense"],
        ["dance"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    """And never a traceback."""
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "--url", NOBODY], "Connection refused"),
        (["streams", "--url", NOBODY, "--json"], "Connection refused"),
        (["status", "--url", "localhost:9093"], "is not the address of a daemon"),
        (["status", "--secret-file", "/no/such"], "cannot read the secret file"),
        (["replay", "/no/such/file", "--url", NOBODY], "cannot read /no/such/file"),
    ],
)
def test_trouble_is_one_line_and_exit_code_1(arguments: list[str], said: str) -> None:
    """Whoever's mistake it is."""
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 1
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_recording_without_rows_is_reported(tmp_path: Path) -> None:
    """More likely the wrong file than nothing to do."""
    path = tmp_path / "empty.txt"
    path.write_text("0.000 * connected\n")

    result = CliRunner().invoke(main, ["replay", str(path), "--url", NOBODY])

    assert (1, True) == (result.exit_code, "contains no rows" in result.stderr)


def test_a_bad_row_is_told_by_its_line_before_anything_is_sent() -> None:
    """Here there is nobody to send to, and it is not even noticed."""
    result = CliRunner().invoke(main, ["append", "typing", "--url", NOBODY], input="\n\n{}\n")

    assert result.exit_code == 1
    assert "line 3: not a JSON array" in result.stderr
    assert "nothing was stored" in result.stderr


def test_help_imports_no_command() -> None:
    """It must be there at once, and a command must not wait for the others' imports."""
    run = "main(['-h'], standalone_mode=False)"
    code = f"import sys; from synrepl.cli import main; {run}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "synrepl.cli.tail" not in modules.split()
    assert "twisted.internet.defer" not in modules.split()


@pytest.mark.parametrize("name", [*main.list_commands(click.Context(main)), "config check"])
def test_the_help_of_a_command_imports_little(name: str) -> None:
    """It costs under a quarter of a CPU second.

    Most of its time is imports; counting them does not depend on the load of the machine.
    """
    check_light_help(name)


def check_light_help(name: str) -> None:
    """Assert that the help of this command imports little."""
    code = f"""
import sys
from synrepl.cli import main
try:
    main([*{name!r}.split(), "--help"], prog_name="synrepl")
finally:
    print(*sys.modules, file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = ended.stderr.split()

    assert len(modules) < 500
    assert not {"twisted.internet.defer", "OpenSSL", "treq", "jinja2", "pyspark", "pyarrow"} & {*modules}


def test_each_command_is_where_the_table_says() -> None:
    """Its name is there too."""
    check_places(main)


def check_places(group: LazyGroup) -> None:
    """Assert that each command of a group is where its table says."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        assert name == command.name
