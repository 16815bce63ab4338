"""When a replica tells systemd that it is ready."""

from pathlib import Path
from typing import Any

import pytest

from tests.service.processes import Process
from tests.service.test_systemd import ANY_PORTS, manager, next_with, received

__all__ = ["manager"]


@pytest.mark.story
@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_a_replica_is_ready_when_it_has_its_copy(
    manager: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ports are open before."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    upstream = ("--upstream", "tcp:127.0.0.1:1")
    with Process("-m", "synrepl", "serve", *upstream, *ANY_PORTS, cwd=tmp_path) as process:
        process.wait_for("ready:")
        assert "READY=1" not in next_with(manager, "joining: this replica has no complete copy yet")
        assert not any("READY=1" in lines for lines in received(manager))
