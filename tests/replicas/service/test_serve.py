"""`synrepl serve --upstream`: whose log the daemon serves."""

import socket
from pathlib import Path

import pytest

from tests.processes.channel import eventually
from tests.service.processes import Daemon, Process
from tests.service.test_serve import ANY_PORTS, serve, status


def test_a_new_replica_has_no_name_until_its_upstream_tells_one(tmp_path: Path) -> None:
    """It does not claim the default name."""
    command = ("-m", "synrepl", "serve", "--upstream", "tcp:127.0.0.1:1", *ANY_PORTS)
    with Process(*command, cwd=tmp_path) as process:
        process.wait_for("ready: a new replica as master")


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """On standard error."""
    answer = serve(tmp_path, "--upstream", "tcp:a:1", "--upstream", "tcp:a:1")

    assert (2, "", 1) == (answer.returncode, answer.stdout, len(answer.stderr.splitlines())), answer.stderr
    assert "--upstream has an address twice" in answer.stderr


@pytest.mark.parametrize("over_http", [False, True])
def test_a_replica_takes_the_name_of_its_upstream(tmp_path: Path, *, over_http: bool) -> None:
    """Unless it was given another one: then its status says so at the top."""
    folders = [tmp_path / name for name in ("primary", "replica", "other")]
    for folder in folders:
        folder.mkdir()
    with Daemon(folders[0], options=("--server-name", "example.org")) as primary:
        upstream = ("--upstream", primary.url if over_http else f"tcp:{primary.follow}")
        with (
            Daemon(folders[1], options=upstream) as replica,
            Daemon(folders[2], options=(*upstream, "--server-name", "other.org")) as other,
        ):
            eventually(lambda: status(replica.url)["state"] == "serving", "the replica is live")
            assert "example.org" == status(replica.url)["server_name"]
            host, _, port = replica.follow.rpartition(":")
            with socket.create_connection((host, int(port)), 10) as follower:
                assert b"SERVER example.org\n" == follower.makefile("rb").readline()

            eventually(lambda: "wrong_server" in str(status(other.url)["errors"][:1]), "it is refused")
            said = status(other.url)["errors"][0]["what"]
            assert "the upstream belongs to example.org, and not to other.org as this daemon" in said
            assert "correct --upstream or --server-name" in said


def test_a_replica_without_a_copy_says_so_when_it_is_ready(tmp_path: Path) -> None:
    """It listens, and has nothing to serve yet."""
    with Daemon(tmp_path, options=("--upstream", "tcp:127.0.0.1:1")) as replica:
        (ready,) = [line for line in replica.lines if "ready:" in line]

        assert "; joining: this replica has no complete copy yet" in ready
