"""A real worker at a replica of a replica: what it says reaches the primary, and what it needs comes down."""

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.harness import PATIENCE_SECONDS, Daemon, peer_client

CACHES = "/v1/streams/caches/rows"


def get(daemon: Daemon, path: str) -> bytes:
    with urllib.request.urlopen(daemon.url + path, timeout=PATIENCE_SECONDS) as answer:
        data: bytes = answer.read()
        return data


def eventually(look: Callable[[], Any], what: str) -> Any:
    """What `look` gives, once it gives something."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        assert time.monotonic() < until, what
        time.sleep(0.1)
    return found


def test_a_real_worker_at_a_replica_of_a_replica_is_heard_once(release: str, tmp_path: Path) -> None:
    """The manual tells people to put workers at a replica. A row keeps the field that only 1.0 knows."""
    folders = [tmp_path / name for name in ("primary", "first", "second")]
    if release != "legacy":
        pytest.skip("device_lists has a destination in 1.0 alone")
    for folder in folders:
        folder.mkdir()
    with Daemon(folders[0]) as primary:
        with Daemon(folders[1], "--upstream", f"tcp:127.0.0.1:{primary.port}") as first:
            with Daemon(folders[2], "--upstream", f"tcp:127.0.0.1:{first.port}") as second:
                where = ("--http", f"127.0.0.1:{second.http_port}", "--syncing", "@syncing:here")
                with peer_client(release, second.port, *where) as client:
                    client.expect("position", stream="device_lists")
                    for line in (
                        "FEDERATION_ACK 7",
                        "REMOVE_PUSHER app.id key @user:here",
                        'INVALIDATE_CACHE get_user_by_id ["@user:here"]',
                    ):
                        client.say(line)
                    primary.append("device_lists", [["@far:here", "far.example.org"]])

                    row = client.expect("rdata", stream="device_lists")["rows"][0]
                    assert row["destination"] == "far.example.org", row
                    syncing = eventually(
                        lambda: b"@syncing:here" in get(primary, "/v1/syncing"), "a user who syncs"
                    )
                    assert syncing
                    rows = eventually(lambda: json.loads(get(primary, CACHES))["updates"], "an invalidation")
                    assert [["get_user_by_id", ["@user:here"]]] == [one[1][:2] for one in rows]
                    said = eventually(
                        lambda: [json.loads(line) for line in get(primary, "/v1/commands").splitlines()],
                        "commands",
                    )
                    texts = [json.dumps(one) for one in said]
                    assert sum("REMOVE_PUSHER" in text for text in texts) == 1, texts
                    eventually(
                        lambda: (
                            b'synrepl_commands_received_total{command="FEDERATION_ACK"} 1.0'
                            in get(primary, "/metrics")
                        ),
                        get(primary, "/metrics").decode(),
                    )
