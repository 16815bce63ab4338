"""`scripts/story.py` on a real homeserver: what the compose file runs in containers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.harness import peer_python

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not peer_python("newest").exists()
    or "homeserver" not in os.environ.get("SYNREPL_INTEROP", "homeserver").split(),
    reason="the newest Synapse is not there, or not asked for; run scripts/interop homeserver",
)


@pytest.mark.story
def test_messages_go_on_after_the_primary_is_lost() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "story.py")], capture_output=True, text=True, timeout=400
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Nothing was lost, and no daemon reports an error." in done.stdout
