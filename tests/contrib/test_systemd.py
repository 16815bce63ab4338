"""The units of `contrib/systemd`, as systemd reads and judges them."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from synrepl.cli import main

UNITS = Path(__file__).resolve().parents[2] / "contrib" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
EXPOSURE = 20
"""The most that ``systemd-analyze security`` may give a service, of 100."""

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not on this machine")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ANALYZE), *arguments], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}
    )


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with programs that exist here."""
    for unit in filter(Path.is_file, UNITS.iterdir()):
        text = unit.read_text().replace("/opt/venvs/synrepl/bin/", f"{tmp_path}/bin/")
        (tmp_path / unit.name).write_text(text)
    (tmp_path / "bin").mkdir()
    for name in ("synrepl", "twistd"):
        (tmp_path / "bin" / name).symlink_to("/bin/true")
    return tmp_path


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_units(units: Path) -> None:
    names = [unit.name.replace("@.", "@a.") for unit in sorted(filter(Path.is_file, UNITS.iterdir()))]
    if (template := units / "synrepl-worker@.service").exists():
        (units / "synrepl-worker@a.service").write_text(template.read_text())

    found = analyze("verify", "--man=no", *(str(units / name) for name in names))

    assert (0, "") == (found.returncode, "\n".join(_about(found.stderr, units)))


def _about(text: str, folder: Path) -> list[str]:
    """The lines about these units, and not about others of this machine."""
    return [line for line in text.splitlines() if "synrepl" in line or str(folder) in line]


@needs_systemd
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_service_is_confined(unit: Path, units: Path) -> None:
    """Its exposure, as systemd counts it."""
    path = units / unit.name.replace("@.", "@a.")
    path.write_text((units / unit.name).read_text())

    found = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(path))

    assert 0 == found.returncode, found.stdout


def test_the_services_are_confined_alike() -> None:
    not_confining = "Type|Exec|Environment|State|Working|Timeout|Watchdog|Notify|User|Restart|WantedBy"
    confined = [
        re.findall(rf"^(?!{not_confining})\w+=.*", unit.read_text().partition("[Service]")[2], re.MULTILINE)
        for unit in SERVICES
    ]

    assert len(SERVICES) > 1
    assert [confined[0]] * len(SERVICES) == confined


DROP_IN = UNITS / "matrix-synapse.service.d" / "before-start.conf"


def test_the_step_before_a_homeserver_is_a_command_that_is_accepted(tmp_path: Path) -> None:
    """With the files of the homeserver; and systemd waits longer than it does."""
    text = DROP_IN.read_text()
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "homeserver.yaml").touch()
    [line] = re.findall(r"^ExecStartPre=(.*)", text, re.MULTILINE)
    program, name, *arguments = shlex.split(line.replace("/etc/matrix-synapse", str(tmp_path)))
    command = main.get_command(click.Context(main), name)
    assert command is not None

    given = command.make_context(name, arguments).params

    assert "/opt/venvs/synrepl/bin/synrepl" == program
    assert (True, True) == (given["before_start"], given["applies"])
    assert (tmp_path / "homeserver.yaml", tmp_path / "conf.d") == given["homeserver_files"]
    [limit] = re.findall(r"^TimeoutStartSec=(\d+)", text, re.MULTILINE)
    assert given["wait"] < int(limit)
    assert line in (UNITS.parents[1] / "docs" / "howto" / "doctor.md").read_text()


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_step_before_a_homeserver(tmp_path: Path) -> None:
    unit = tmp_path / "matrix-synapse.service"
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    folder = tmp_path / DROP_IN.parent.name
    folder.mkdir()
    (folder / DROP_IN.name).write_text(
        DROP_IN.read_text().replace("/opt/venvs/synrepl/bin/synrepl", "/bin/true")
    )

    found = analyze("verify", "--man=no", str(unit))

    assert (0, "") == (found.returncode, "\n".join(_about(found.stderr, tmp_path)))
