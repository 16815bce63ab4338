"""The settings of the RESP port."""

from pathlib import Path
from typing import Any

import pytest

from synrepl.config import Settings
from synrepl.errors import ConfigError
from tests.service.test_config import CLOSED, OPEN, TLS, check_private


@pytest.mark.parametrize(
    ("flags", "is_taken"),
    [({"resp": OPEN}, False), ({"resp": TLS}, True), ({"resp": CLOSED}, True)],
    ids=str,
)
def test_no_key_is_sent_where_others_can_read_it(
    flags: dict[str, Any], is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of the port show keys."""
    check_private(flags, is_taken, tmp_path, monkeypatch)


def test_an_open_port_needs_a_secret() -> None:
    """As the HTTP API does."""
    with pytest.raises(ConfigError, match=f"--resp {OPEN} is reachable from other machines without a secret"):
        Settings.build({"resp": OPEN})
    assert Settings.build({"resp": OPEN, "insecure": True}).has_channel


def test_the_port_is_a_channel_to_publish_on() -> None:
    """As a Redis is; without either there is none."""
    written = {"redis_writes": "caches", "instance_name": "synrepl1"}

    assert Settings.build({"resp": CLOSED, **written}).has_channel
    with pytest.raises(ConfigError, match="--redis-writes needs --redis or --resp"):
        Settings.build(written)
