"""Issued keys at real daemons: a primary, its replica, and a replica of that."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.cli.test_processes import run
from tests.processes.channel import eventually
from tests.processes.loading import report
from tests.service.processes import Daemon

ALL = ("--rights", "read,write,replicate,administer")
QUICK = ("--heartbeat-seconds", "1", "--ping-seconds", "1", "--timeout-seconds", "3", "--stale-seconds", "1")


def start(folder: Path, secret: Path, upstream: Daemon | None = None) -> Daemon:
    """A daemon with this secret, which follows another one."""
    folder.mkdir(exist_ok=True)
    follow = () if upstream is None else ("--upstream", f"tcp:{upstream.follow}")
    return Daemon(folder, options=("--secret-file", str(secret), *QUICK, *follow))


def code(daemon: Daemon, secret: str, path: str = "/v1/replication", body: bytes | None = None) -> int:
    """The status of an answer to who shows this secret."""
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    request = urllib.request.Request(daemon.url + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_revoked_key_is_refused_at_a_replica_of_a_replica(tmp_path: Path) -> None:
    """Within two seconds, and after a restart without the other daemons; its secret is on no disk."""
    shared = tmp_path / "shared"
    shared.write_text("correct horse\n")
    shared.chmod(0o600)
    facts = json.dumps({"facts": [[["@ada:hs.example"]]]}).encode()
    appending = "/v1/streams/push_rules/facts"
    with start(tmp_path / "a", shared) as a:
        at = ("--url", a.url, "--secret-file", str(shared))
        for name in ("b", "c"):
            run(tmp_path, "keys", "add", name, *ALL, "--to", f"{name}.secret", *at)
        printed = run(tmp_path, "keys", "add", "reader", "--instances", "w1,w2", *at)
        reader = printed.stdout.strip()
        refused = run(tmp_path, "keys", "add", "reader", *at)
        existing = run(tmp_path, "keys", "add", "d", "--to", "b.secret", *at)
        assert (0o600, 0) == ((tmp_path / "b.secret").stat().st_mode & 0o777, printed.returncode)
        assert (1, True) == (refused.returncode, "there is a key reader already" in refused.stderr)
        assert (1, True) == (existing.returncode, "nothing was done" in existing.stderr)
        with start(tmp_path / "b", tmp_path / "b.secret", a) as b:
            c = start(tmp_path / "c", tmp_path / "c.secret", b)
            eventually(lambda: code(c, reader) == 200, "the new key")
            assert code(c, reader, appending, facts) == 200
            began = time.monotonic()
            assert run(tmp_path, "keys", "revoke", "reader", *at).returncode == 0
            eventually(lambda: code(c, reader) == 401, "the revocation")
            took = time.monotonic() - began
            listed = run(tmp_path, "keys", "list", *at, "--json")
            shown = run(tmp_path, "keys", *("list", "--url", c.url, "--secret-file", "c.secret"))
            writer = run(tmp_path, "keys", "add", "writer", *at).stdout.strip()
            eventually(lambda: code(c, writer) == 200, "the other key")
            c.kill()
    c = start(tmp_path / "c", tmp_path / "c.secret", b)
    try:
        alone = (code(c, reader), code(c, writer), code(c, writer, appending, facts))
    finally:
        c.kill()

    report(f"a revocation is at a replica of a replica after {took:.2f} s")
    known = json.loads(listed.stdout)
    assert [("b", False), ("c", False), ("reader", True)] == [
        (one["name"], one["revoked"] is not None) for one in known
    ]
    assert [None, None, ["w1", "w2"]] == [one["instances"] for one in known]
    assert ["name", "b", "c", "reader"] == [line.split()[0] for line in shown.stdout.splitlines()]
    assert (401, 200, 403) == alone
    for secret in (reader, writer):
        for path in (path for folder in "abc" for path in (tmp_path / folder).rglob("*") if path.is_file()):
            assert secret.rpartition(".")[2].encode() not in path.read_bytes(), path
