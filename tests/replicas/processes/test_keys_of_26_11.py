"""A log of release 26.11 (ae8adc54) with issued keys, one of which it has revoked."""

import gzip
import json
import sqlite3
from pathlib import Path

from tests.processes.channel import eventually
from tests.replicas.processes.test_secret_attacks import ask
from tests.service.processes import Daemon

LOG = Path(__file__).resolve().parents[2] / "releases" / "keys-26.11.db.gz"
SHARED = "the-shared-secret-of-the-fixture"
LAPTOP = "laptop.kpRm5ft_837irC9yIJ5vTAVnY8KJj02vDlN49DrCSgA"
DESK = "desk.T3jrSsxauqCuIYr7LS3U877g7_Tbhn1y-G3YoO9inRI"
"""Revoked."""


def records(folder: Path) -> dict[str, set[str]]:
    """The fields of the record of each key; empty before the keys have come."""
    log = sqlite3.connect(f"file:{folder / 'synrepl.db'}?mode=ro", uri=True)
    try:
        notes = log.execute("SELECT value FROM notes WHERE name = 'keys'").fetchall()
    finally:
        log.close()
    return {one["name"]: set(one["record"]) for (text,) in notes for one in json.loads(text)}


def test_its_keys_work_as_before_and_are_renewed_once_they_are_shown(tmp_path: Path) -> None:
    """At the primary, and at a replica whose own key is one of them; what was revoked stays so."""
    primary_home, replica_home = tmp_path / "primary", tmp_path / "replica"
    for home, secret in ((primary_home, SHARED), (replica_home, LAPTOP)):
        home.mkdir()
        (home / "secret").write_text(secret)
        (home / "secret").chmod(0o600)
    (primary_home / "synrepl.db").write_bytes(gzip.decompress(LOG.read_bytes()))
    old = {"salt", "stored_key", "server_key"}
    assert records(primary_home) == {"laptop": old, "desk": old}
    options = ("--secret-file", "secret", "--server-name", "example.org")
    with Daemon(primary_home, options=options) as primary:
        listed = ask(primary.url, SHARED, "GET", "/v1/keys").body["keys"]
        assert {one["name"]: one["revoked"] is None for one in listed} == {"laptop": True, "desk": False}
        assert ask(primary.url, DESK, "GET", "/v1/status").status == 401
        assert records(primary_home) == {"laptop": old, "desk": old}
        upstream = ("--upstream", f"tcp:{primary.follow}", "--secret-file", "secret")
        with Daemon(replica_home, options=upstream) as replica:
            eventually(lambda: ask(replica.url, LAPTOP, "GET", "/readyz").status == 200, "a whole copy")
            eventually(
                lambda: all(
                    "sha256" in records(home).get("laptop", ()) for home in (primary_home, replica_home)
                ),
                "the record of today, at both",
            )
            assert records(primary_home) == {"laptop": {"sha256", "salt"}, "desk": old}
            facts = {"facts": [[["@ada:example.org"]]]}
            for daemon in (primary, replica):
                assert ask(daemon.url, LAPTOP, "POST", "/v1/streams/push_rules/facts", facts).status == 200
                assert ask(daemon.url, DESK, "GET", "/v1/status").status == 401
                assert ask(daemon.url, f"{LAPTOP[:-1]}B", "GET", "/v1/status").status == 401
            assert ask(primary.url, SHARED, "DELETE", "/v1/keys/laptop").status == 200
            assert ask(primary.url, LAPTOP, "GET", "/v1/status").status == 401
