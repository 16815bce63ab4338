"""``synrepl demo``: a daemon, workers of two Synapse releases, and two recorded sessions replayed into it."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from typing import Final

import click

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.recordings import read_file
from synrepl.cli.tables import table
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import Dialect

DIALECTS: Final = ("legacy", "current")
PATIENCE_SECONDS: Final = 60.0
PORT: Final = click.IntRange(0, 65_535)


@click.command(cls=CliCommand)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory of the log [default: a temporary one, which is removed]",
)
@click.option("--port", type=PORT, default=9092, help="The port for followers.")
@click.option("--http-port", type=PORT, default=9093, help="The port for HTTP.")
@click.option("--once", is_flag=True, help="End after the comparison.")
def demo(data: Path | None, port: int, http_port: int, once: bool) -> None:
    """Show a daemon at work, until Ctrl-C: facts go in at one end, and come out at workers of two releases.

    Starts a daemon and two followers, one as a worker of Synapse 1.0, the other as one of 1.66. Replays two
    recorded sessions into the daemon. Compares, by stream, how many rows were recorded and how many each
    worker received. Exit code 1: the numbers differ, or a worker reported an error.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="synrepl-demo-")))
        data.mkdir(parents=True, exist_ok=True)
        try:
            daemon = _Daemon(stack, data, port, http_port)
            click.echo(f"the daemon serves followers at {daemon.follow} and HTTP at {daemon.url}")
            is_same = _demonstrate(stack, daemon, data)
            click.echo("each worker received each row once" if is_same else "NOT as recorded: see the table")
            if not once:
                click.echo("\nThe daemon goes on serving until Ctrl-C. To look at it:")
                program = _program()
                click.echo(f"  {program} tail {daemon.follow} --http {daemon.url}")
                click.echo(f"  {program} status --url {daemon.url}      or {daemon.url}/status in a browser")
                daemon.process.wait()
        except KeyboardInterrupt:
            sys.exit(0)
    sys.exit(0 if is_same else 1)


def _program() -> str:
    """Return how to run synrepl in another terminal: its path, unless it is on the PATH."""
    program = Path(sys.argv[0])
    found = shutil.which(program.name)
    if program.name != "synrepl" or (found is not None and Path(found).samefile(program)):
        return "synrepl"
    return os.path.relpath(program)


class _Process:
    """A command of synrepl as a process, which `stack` ends. Each line of its output goes to `on_line`."""

    def __init__(self, stack: ExitStack, *arguments: str) -> None:
        self._lines: Queue[str] = Queue()
        self.process = subprocess.Popen(  # noqa: S603  # only this program, with its own arguments
            [sys.executable, "-m", "synrepl", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        stack.callback(self._stop)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def wait_until(self, is_done: Callable[[], bool]) -> bool:
        """Handle lines until `is_done` holds. Return False if the process ends or the time is up before."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not is_done():
            try:
                self.on_line(self._lines.get(timeout=0.2))
            except Empty:
                if self.process.poll() is not None or time.monotonic() > until:
                    return False
        return True

    def on_line(self, line: str) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Daemon(_Process):
    """A daemon that is ready, with its addresses. Raises `CliError` if it cannot start."""

    def __init__(self, stack: ExitStack, data: Path, port: int, http_port: int) -> None:
        self.follow = self.url = self._last = ""
        super().__init__(
            stack, "serve", "--server-name", "example.org", "--database", f"sqlite:{data / 'synrepl.db'}",
            "--listen", f"tcp:{port}:interface=127.0.0.1", "--http", f"tcp:{http_port}:interface=127.0.0.1",
        )  # fmt: skip
        if not self.wait_until(lambda: "ready: " in self._last):
            raise CliError(self._last or "the daemon ended, or was not ready in 60 seconds")

    def on_line(self, line: str) -> None:
        self._last = line
        address = line.partition("listening at tcp:")[2].partition(",")[0]
        if "followers: listening" in line:
            self.follow = address
        elif "http: listening" in line:
            self.url = f"http://{address}"


class _Worker(_Process):
    """A follower of one release, which counts the rows that it receives."""

    def __init__(self, stack: ExitStack, dialect: str, daemon: _Daemon) -> None:
        self.dialect = dialect
        self.known = {stream.name for stream in StreamTable.default().known_to(Dialect.parse(dialect))}
        self.rows: Counter[str] = Counter()
        self.errors: list[str] = []
        self._positions: set[str] = set()
        super().__init__(
            stack, "tail", daemon.follow, "--dialect", dialect, "--http", daemon.url,
            "--name", f"demo-{dialect}",
        )  # fmt: skip

    def on_line(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            self.errors.append(line)
            return
        match event["type"]:
            case "rdata":
                self.rows[event["stream"]] += len(event["rows"])
            case "position":
                self._positions.add(event["stream"])
            case "error":
                self.errors.append(event["message"])

    def wait_until_live(self, streams: Iterable[str]) -> None:
        """Wait for the positions of these streams: later rows will be received."""
        self.wait_until(lambda: self._positions.issuperset(self.known.intersection(streams)))

    def wait_for(self, wanted: Counter[str]) -> None:
        """Wait for as many rows as these, in the streams that the release knows."""
        known = Counter({stream: rows for stream, rows in wanted.items() if stream in self.known})
        self.wait_until(lambda: self.rows >= known)


def _demonstrate(stack: ExitStack, daemon: _Daemon, data: Path) -> bool:
    wanted: Counter[str] = Counter()
    files = []
    for name in DIALECTS:
        packed = Path(__file__).with_name("sessions") / f"{name}.txt.gz"
        files.append(data / f"{name}-session.txt")
        files[-1].write_bytes(gzip.decompress(packed.read_bytes()))
        for fact in read_file(files[-1]).facts:
            wanted[fact.stream] += len(fact.rows)
    workers = [_Worker(stack, dialect, daemon) for dialect in DIALECTS]
    for worker in workers:
        worker.wait_until_live(wanted)
    for file in files:
        _replay(file, daemon)
    for worker in workers:
        worker.wait_for(wanted)
    return _compare(wanted, workers)


def _replay(file: Path, daemon: _Daemon) -> None:
    command = [sys.executable, "-m", "synrepl", "replay", str(file), "--url", daemon.url, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603  # as above
    if done.returncode:
        raise CliError(f"cannot replay {file}: see the message above")
    found = json.loads(done.stdout)
    click.echo(
        f"replayed {found['rows']} rows, recorded from a Synapse that speaks {found['dialect']},"
        f" in {found['seconds']:.1f} s"
    )


def _compare(wanted: Counter[str], workers: list[_Worker]) -> bool:
    """Show the recorded rows beside those that each worker received. Return whether they are the same."""
    rows = []
    is_same = True
    for stream in sorted(wanted):
        expected = [wanted[stream] if stream in worker.known else 0 for worker in workers]
        received = [worker.rows[stream] for worker in workers]
        is_same &= received == expected
        shown = [
            count if count or stream in worker.known else "not in this release"
            for count, worker in zip(received, workers, strict=True)
        ]
        rows.append((stream, wanted[stream], *shown, "ok" if received == expected else "WRONG"))
    for line in table(("stream", "recorded", *(f"{one.dialect} worker" for one in workers), ""), rows):
        click.echo(line)
    for worker in workers:
        for error in worker.errors:
            is_same = False
            click.echo(f"the {worker.dialect} worker reports: {error}", err=True)
    return is_same
