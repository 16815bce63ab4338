"""The programs of the manual do what their pages say: as printed, from an empty folder."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from scripts.lib.printed_commands import (
    CHECKED_ELSEWHERE,
    NOT_RUN,
    accepts,
    all_pages,
    outputs_of_nothing,
    read_blocks,
    split_commands,
)
from scripts.printed_commands import NO_NAMESPACES
from synrepl.replicas.error_codes import REFUSALS
from tests.service.processes import Daemon, Process

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}

PAGES_HERE = ("README.md", "docs/tutorial/first-steps.md")
"""Of the others, ``scripts/check-wheel`` runs every command, with the wheel."""


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, timeout=600, env=ENVIRONMENT
    )


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    (tmp_path / "writer.py").write_text(blocks("docs/howto/write-facts.md", "python")[0], "utf-8")
    return tmp_path


def test_the_writer_prints_what_the_page_shows(writer: Path) -> None:
    """Both writers, one after the other."""
    shown = []
    for name in ("w1", "w2"):
        shown.append(f"$ python writer.py {name}")
        shown += run(writer, "writer.py", name).stdout.splitlines()

    assert blocks("docs/howto/write-facts.md", "console")[0].splitlines() == shown


def test_a_writer_that_is_not_listed_ends_with_an_error(writer: Path) -> None:
    """It could only be killed: a thread that nothing stopped kept the process alive."""
    ended = run(writer, "writer.py", "w3")

    assert ended.returncode == 1
    assert "w3 is not among the writers of" in ended.stderr


def test_commands_of_workers_are_read_as_the_page_shows(tmp_path: Path) -> None:
    """By the printed program; who has acknowledged them is not offered them again."""
    (tmp_path / "commands.py").write_text(blocks("docs/howto/follower-commands.md", "python")[0], "utf-8")
    with Daemon(tmp_path) as daemon:
        host, port = daemon.follow.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as worker:
            worker.sendall(
                b"NAME old-worker\nREPLICATE push_rules NOW\n"
                b"USER_SYNC @ada:hs start 1\nREMOVE_PUSHER app.id push_key @ada:hs\n"
            )
            program = Process(str(tmp_path / "commands.py"), daemon.url, cwd=tmp_path)
            try:
                program.wait_for("REMOVE_PUSHER app.id push_key @ada:hs")
                with urllib.request.urlopen(f"{daemon.url}/v1/syncing", timeout=60) as answer:
                    assert ["@ada:hs"] == [one["user_id"] for one in json.loads(answer.read())["users"]]
            finally:
                program.kill()


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    names = ("counter.py", "counter.tac", "test_topics.py", "test_counter.py")
    for name, text in zip(names, blocks("docs/howto/write-a-worker.md", "python"), strict=True):
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def test_the_tests_of_the_worker_pass(worker: Path) -> None:
    """Its counts are exact through a kill, and its cache is invalidated."""
    ended = run(worker, "-m", "pytest", "-q", "-p", "no:cacheprovider")

    assert "2 passed" in ended.stdout, ended.stdout


def starts(folder: Path, program: str, command: str) -> None:
    """Check that a printed command starts a worker, which connects, and ends in order when asked to."""
    # A folder on the path replaces PYTHONPATH; this stands for the installed package.
    (folder / "synrepl").symlink_to(ROOT / "synrepl")
    path = folder / program
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        text = path.read_text("utf-8").replace("tcp:127.0.0.1:9092", f"tcp:127.0.0.1:{port}")
        path.write_text(text, "utf-8")
        with subprocess.Popen(
            f"exec env {command}",
            shell=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=ENVIRONMENT,
        ) as process:
            try:
                server.accept()[0].close()
            finally:
                process.send_signal(signal.SIGTERM)
                said = process.communicate(timeout=60)[0]
            assert "Server Shut Down" in said, said
    assert "Traceback" not in said


def test_the_worker_starts_as_printed(worker: Path) -> None:
    """`twistd` alone does not find modules in the current folder."""
    [command] = blocks("docs/howto/write-a-worker.md", "console")

    starts(worker, "counter.tac", command.removeprefix("$ ").strip())


def test_the_worker_of_the_readme_starts_as_printed(tmp_path: Path) -> None:
    """The first program that a reader tries."""
    [program] = blocks("README.md", "python")
    found = re.search(r"`worker.tac`, which `(.*)` runs", (ROOT / "README.md").read_text("utf-8"))
    assert found is not None
    (tmp_path / "worker.tac").write_text(program, "utf-8")

    starts(tmp_path, "worker.tac", found[1])


MIGRATED = """
import sqlite3

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.testing import MemoryReactorClock


def test_it_connects_to_redis() -> None:
    reactor = MemoryReactorClock()
    service = connect(reactor, synrepl.Follower(instance="pusher1"), "secret")
    service.startService()
    assert {client[1] for client in reactor.tcpClients} == {6379}


def test_waiting_ends_with_the_row() -> None:
    cluster = Cluster()
    follower = push_worker(Pushers(), MemoryPositions(), caches)
    cluster.follower(follower)
    done = ensureDeferred(wait_for_receipts(follower, 1))
    assert not done.called
    cluster.append("receipts", Receipt("!r:hs", "m.read", "@ada:hs", "$e", None, {}), writer="persister1")
    assert done.called


def test_a_receipt_drops_a_cached_value_and_a_command_is_received() -> None:
    cluster, servers = Cluster(), []
    follower = push_worker(Pushers(), MemoryPositions(), caches)
    retry_servers(follower, servers.append)
    cluster.follower(follower)
    ensureDeferred(get_last_read("@ada:hs"))
    misses = caches.caches["get_last_read"].misses
    cluster.append("receipts", Receipt("!r:hs", "m.read", "@ada:hs", "$e", None, {}))
    ensureDeferred(get_last_read("@ada:hs"))
    assert caches.caches["get_last_read"].misses == misses + 1
    cluster.daemon.publisher.broadcast(RemoteServerUp(server="other.hs"))
    cluster.settle()
    assert servers == ["other.hs"]


class Pool:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    def runInteraction(self, work, *args):
        done = Deferred()
        with self.connection:
            done.callback(work(self.connection.cursor(), *args))
        return done


def test_a_write_has_its_id_and_its_invalidation() -> None:
    pool, clock = Pool(), MemoryReactorClock()
    pool.connection.execute("CREATE TABLE receipts (stream_id BIGINT, user_id TEXT)")
    ids, changed = (
        synrepl.StreamIdGenerator(
            pool,
            name=name,
            sequence=f"{name}_sequence",
            tables=[synrepl.IdTable(name=table, writer_column=None)],
            instance="w1",
            flavor="sqlite",
            clock=clock,
        )
        for name, table in (("receipts", "receipts"), ("caches", "cache_invalidation_stream_by_instance"))
    )
    changes = synrepl.InvalidationWriter(changed, seconds=clock.seconds)
    pool.runInteraction(changes.create)
    tokens = []
    for generator in (ids, changed):
        pool.runInteraction(generator.database.create)
        ensureDeferred(generator.start())
    ensureDeferred(write(pool, receipt_writer(ids, changes))).addCallback(tokens.append)
    assert tokens == [2]
    query = "SELECT cache_func, keys FROM cache_invalidation_stream_by_instance"
    assert pool.connection.execute(query).fetchall() == [("get_last_read", \'["@ada:hs"]\')]
"""
"""Tests of the parts of the program that the page does not test itself."""


def test_the_migrated_worker_passes_its_test(tmp_path: Path) -> None:
    """The right sides of the page, put together, are one program with its test."""
    program = "".join(blocks("docs/howto/migrate-from-synapse-handler.md", "python"))
    path = tmp_path / "test_pusher.py"
    path.write_text(program + MIGRATED, "utf-8")

    ended = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name)

    assert "5 passed" in ended.stdout, ended.stdout


@pytest.mark.parametrize("page", PAGES_HERE)
def test_the_commands_of_a_page_print_what_it_shows(page: str) -> None:
    """They run as printed, in namespaces with a network of their own."""
    script = ROOT / "scripts/printed_commands.py"
    ended = subprocess.run(
        [sys.executable, str(script), "--path", str(ROOT), page],
        capture_output=True,
        text=True,
        timeout=600,
        env=ENVIRONMENT,
    )

    if ended.returncode == NO_NAMESPACES:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_is_as_the_manual_shows_it(code: str) -> None:
    """Each is provoked with real daemons. Otherwise: python scripts/docs_refusals.py."""
    ended = run(ROOT, "scripts/docs_refusals.py", "--check", code)

    assert ended.returncode == 0, ended.stdout + ended.stderr


PAGE = """\
# A page

Prose, then `counter.py`:

```python
print(1)
```

<!-- first: mkdir here -->
<!-- first on rome: stop -->
<!-- on: paris -->

    one --long \\
        option
    cat <<END
    text
    END

```text
printed
```

* a list

      with an example

<!-- not run: needs a machine -->

```console
$ two | \\
    three
out
$ four
```

    synrepl status [options]

<!-- not output: a picture -->

```text
a ---> b
```

# Another section

```text
of no command
```

<!-- first: echo said -->

```text
said
```
"""


def test_the_commands_of_a_page_are_found(tmp_path: Path) -> None:
    """Indented blocks and the lines after a dollar; whole, also over several lines."""
    (tmp_path / "page.md").write_text(PAGE, "utf-8")

    found = list(read_blocks(tmp_path / "page.md"))

    assert [
        ("file", "print(1)"),
        ("commands", "one --long \\\n    option\ncat <<END\ntext\nEND"),
        ("output", "printed"),
        ("commands", "two | \\\n    three"),
        ("output", "out"),
        ("commands", "four"),
        ("other", "a ---> b"),
        ("output", "of no command"),
        ("output", "said"),
    ] == [(one.kind, one.text) for one in found]
    assert ("counter.py", "paris") == (found[0].name, found[1].on)
    assert [("", "mkdir here"), ("rome", "stop")] == found[1].first
    assert ["one --long \\\n    option", "cat <<END\ntext\nEND"] == found[1].commands
    assert ["", "", "", *["needs a machine"] * 3, "", "", ""] == [one.not_run for one in found]
    assert [found[7].line] == outputs_of_nothing(tmp_path / "page.md")


@pytest.mark.parametrize("page", all_pages())
def test_programs_of_the_checkout_are_called_by_their_path(page: str) -> None:
    """A wheel has none of them, so that `scripts/check-wheel` must know them; it takes minutes to say so."""
    blocks = [block for block in read_blocks(ROOT / page) if block.kind == "commands" and not block.not_run]
    commands = [command for block in blocks for command in block.commands]
    ours = [one for one in commands if re.search(r"(^|[ /])scripts/\w|-m tests\.", one)]

    assert [] == [one for one in ours if not any(re.search(pattern, one) for pattern in NOT_RUN)]


@pytest.mark.parametrize("page", all_pages())
def test_every_output_of_a_page_is_compared_or_says_why_not(page: str) -> None:
    """An output without a command before it was silently left out."""
    is_derived = "<!-- Written by scripts/docs" in (ROOT / page).read_text("utf-8")

    assert is_derived or page in CHECKED_ELSEWHERE or outputs_of_nothing(ROOT / page) == []


def test_a_command_that_is_not_whole_is_an_error() -> None:
    """Text that is indented by mistake would otherwise count as tried."""
    with pytest.raises(ValueError, match="this command is incomplete: 3 mutants"):
        split_commands("3 mutants: 2 killed (time)")


@pytest.mark.parametrize(
    ("shown", "printed", "is_accepted"),
    [
        ("w1 wrote 2", "w1 wrote 2\n", True),
        ("w1 wrote 2", "w1 wrote 3\n", False),
        ("w1 wrote 2", "warning\nw1 wrote 2\n", False),
        ("... ready: example.org", "2026-11-23 [-] ready: example.org\n", True),
        ("a\n...\nc", "a\nb\nb\nc\n", True),
        ("digest aa6b1234567890123459bd", "digest 0123456789abcdefabcd01\n", True),
        ("name master-49c07942", "name master-00c07940\n", True),
        ("PING 1795239700348", "PING 1700000000000\n", True),
        ("PING 1795239700348", "PING 17\n", False),
        ("facts in 3.1 s", "facts in 12.75 s\n", True),
        ("in 4 files", "in 5 files\n", False),
    ],
)
def test_printed_output_is_compared_with_the_page(shown: str, printed: str, is_accepted: bool) -> None:
    """Times, durations and digests differ from run to run; nothing else may."""
    assert is_accepted == accepts(shown, printed, is_whole=True)


def test_the_follower_of_own_streams_passes_its_test(tmp_path: Path) -> None:
    """The two programs of the page are one test."""
    program = "".join(blocks("docs/howto/own-streams.md", "python"))
    (tmp_path / "test_packages.py").write_text(program, "utf-8")

    ended = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_packages.py")

    assert "1 passed" in ended.stdout, ended.stdout


def test_own_streams_are_as_printed(tmp_path: Path) -> None:
    """Every command, at a daemon that has just started, and what it prints."""
    from tests.service.processes import Daemon

    [page] = blocks("docs/howto/own-streams.md", "console")
    [config] = blocks("docs/howto/own-streams.md", "yaml")
    with Daemon(tmp_path) as daemon:
        environment = {**ENVIRONMENT, "SYNREPL_URL": daemon.url}
        said = ""
        for command in re.findall(r"^\$ (.*)$", page, re.MULTILINE):
            ended = subprocess.run(
                ["sh", "-c", command.replace("http://localhost:9093", daemon.url)],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                timeout=60,
                env=environment,
            )
            said += f"$ {command}\n{ended.stdout}{ended.stderr}".replace(daemon.url, "http://localhost:9093")
    assert said == page

    (tmp_path / "synrepl.yaml").write_text(config, "utf-8")
    (tmp_path / "own").mkdir()
    with Daemon(tmp_path / "own", options=("--config", str(tmp_path / "synrepl.yaml"))) as daemon:
        daemon.wait_for("serial 2")
