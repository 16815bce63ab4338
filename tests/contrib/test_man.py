"""The man page, as groff reads it. That it is up to date is in `tests/test_docs.py`."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.docs import man

PAGE = Path(__file__).resolve().parents[2] / "contrib" / "man" / "synrepl.1"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not on this machine")
def test_groff_has_no_complaint_and_shows_every_command() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-P-c", str(PAGE)], capture_output=True, text=True, timeout=60
    )

    assert "" == done.stderr
    shown = re.sub(r".\x08", "", done.stdout)
    for name in ("serve", "tail", "promote", "config check"):
        assert re.search(rf"^ +{name}$", shown, re.MULTILINE), name
    assert "--retain-seconds" in shown


def test_it_has_the_parts_that_a_man_page_has() -> None:
    parts = ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "EXIT STATUS", "SEE ALSO"]

    assert parts == re.findall(r"^\.SH (.*)$", man(), re.MULTILINE)
