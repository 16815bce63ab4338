"""The Debian packaging: what it installs exists, and the tools of Debian read it.

A build takes minutes, and a package index: docs/howto/deploy.md has the commands.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = ROOT / "contrib" / "debian"
RULES = (DEBIAN / "rules").read_text()


@pytest.mark.skipif(shutil.which("dpkg-parsechangelog") is None, reason="this machine has no tools of Debian")
def test_the_changelog_has_the_version_of_the_package() -> None:
    done = subprocess.run(
        ["dpkg-parsechangelog", "--file", str(DEBIAN / "changelog"), "--show-field", "Version"],
        capture_output=True,
        text=True,
    )

    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert ("", version) == (done.stderr, done.stdout.strip())


def test_what_is_installed_exists() -> None:
    """And is in the place where the units and the pages of the manual have it."""
    sources = [
        word
        for line in RULES.splitlines()
        if line.startswith("\tinstall") and "-d $(STAGE)" not in line
        for word in shlex.split(line)
        if word.startswith(("contrib/", "debian/", "NEWS"))
    ]
    for source in sources:
        assert list(
            ROOT.glob(source.replace("debian/", "contrib/debian/", 1) if source[0] == "d" else source)
        ), source
    unit = (ROOT / "contrib" / "systemd" / "synrepl.service").read_text()
    [home] = re.findall(r"^HOME_DIR := (.*)$", RULES, re.MULTILINE)
    assert f"ExecStart=/{home}/bin/synrepl serve" in unit
    for path in (DEBIAN / "conffiles").read_text().split():
        assert f"$(STAGE){path}" in RULES


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make on this machine")
@pytest.mark.parametrize("target", ["clean", "build", "binary", "binary-arch", "binary-indep"])
def test_make_knows_the_targets_of_debian(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--file", str(DEBIAN / "rules"), target], capture_output=True, text=True
    )

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("name", ["postinst", "prerm"])
def test_a_script_of_the_package_is_a_script(name: str) -> None:
    assert (DEBIAN / name).stat().st_mode & 0o111
    subprocess.run(["/bin/sh", "-n", str(DEBIAN / name)], check=True)
