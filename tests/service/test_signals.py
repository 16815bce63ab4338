"""What signals do to a daemon: SIGHUP reloads, and nothing but the usual ones ends it."""

import http.client
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.service.processes import PATIENCE_SECONDS, TWISTD, Daemon, Process

RELOADED = "reloaded secrets, keys and certificates; reopened log files"


def status(daemon: Daemon, secret: str) -> int:
    """The status of an answer to a peer with this secret."""
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
    connection.request("GET", "/v1/status", headers={"Authorization": f"Bearer {secret}"})
    found = connection.getresponse().status
    connection.close()
    return found


def test_no_signal_of_a_log_rotation_ends_the_daemon(tmp_path: Path) -> None:
    """``kill -HUP`` by logrotate was an outage; USR1 and USR2 as well."""
    with Daemon(tmp_path) as daemon:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            os.kill(daemon.pid, number)
        daemon.wait_for(RELOADED)
        assert status(daemon, "") == 200
        assert daemon.terminate() == -signal.SIGTERM


def test_a_log_file_that_was_moved_is_made_anew(tmp_path: Path) -> None:
    """As logrotate does it, without copytruncate."""
    log, moved = tmp_path / "d.log", tmp_path / "d.log.1"
    listen = ("--listen", "tcp:0:interface=127.0.0.1", "--http", "tcp:0:interface=127.0.0.1")
    options = (*TWISTD[:-1], "--logfile", str(log), TWISTD[-1], *listen)
    with Process(*options, cwd=tmp_path) as daemon:
        wait_for(daemon, log, "ready:")
        log.rename(moved)
        os.kill(daemon.pid, signal.SIGHUP)
        wait_for(daemon, log, RELOADED)
        daemon.terminate()

    assert "ready:" in moved.read_text()
    assert "ready:" not in log.read_text()


def wait_for(daemon: Process, log: Path, text: str) -> None:
    """Until the file says so, or the daemon has ended."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < until, daemon.lines
        time.sleep(0.02)


@pytest.mark.story
def test_a_new_secret_counts_from_sighup_on(tmp_path: Path) -> None:
    """So does a key that is gone; what is not reloaded is named."""
    secret, keys, file = tmp_path / "secret", tmp_path / "keys", tmp_path / "c.yaml"
    secret.write_text("old")
    keys.write_text("grafana dashboard read\n")
    file.write_text("retain_seconds: 100\n")
    options = ("--secret-file", str(secret), "--keys-file", str(keys), "--config", str(file))
    with Daemon(tmp_path, options=options) as daemon:
        assert [200, 401, 200] == [status(daemon, one) for one in ("old", "new", "dashboard")]

        secret.write_text("new")
        keys.write_text("# grafana was here\n")
        file.write_text("retain_seconds: 200\n")
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_for(RELOADED)

        assert [401, 200, 401] == [status(daemon, one) for one in ("old", "new", "dashboard")]
        daemon.wait_for("a restart is needed for changes of retain_seconds")


def test_settings_that_make_no_sense_change_nothing(tmp_path: Path) -> None:
    """The daemon says why in a line, and goes on as it was."""
    secret = tmp_path / "secret"
    secret.write_text("old")
    with Daemon(tmp_path, options=("--secret-file", str(secret))) as daemon:
        secret.write_text("")
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_for("cannot reload on SIGHUP, the old settings remain: ")

        assert status(daemon, "old") == 200


def test_a_stream_of_the_changelog_ends_with_its_key(tmp_path: Path) -> None:
    """A key that is revoked is revoked for who reads already."""
    keys = tmp_path / "keys"
    keys.write_text("laptop abc read\nother def all\n")
    with Daemon(tmp_path, options=("--keys-file", str(keys))) as daemon:
        connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
        shown = {"Authorization": "Bearer abc"}
        connection.request("GET", "/v1/changelog?follow=true&heartbeat=1", headers=shown)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline()
        keys.write_text("other def all\n")
        os.kill(daemon.pid, signal.SIGHUP)
        with suppress(http.client.IncompleteRead, ConnectionError):
            while answer.readline():
                pass

        assert status(daemon, "def") == 200
