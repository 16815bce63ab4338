"""The main job, to watch: facts go in at one end, and come out at workers of two ages.

Starts the daemon, follows it as a worker of Synapse 1.0 and as one of 1.66 would, replays two recorded
sessions into it, and compares what both were told with what is in the recordings. Then it goes on serving
until Ctrl-C.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from synrepl.cli.recordings import read  # noqa: E402  # after the path
from synrepl.streams.table import StreamTable  # noqa: E402
from synrepl.wire.dialect import Dialect  # noqa: E402

RECORDINGS = [ROOT / "tests/golden" / name / "session-all.txt" for name in ("legacy", "current")]
DIALECTS = ("legacy", "current")
PATIENCE_SECONDS = 60

console = Console(soft_wrap=True)


class Failed(Exception):
    """The demonstration cannot go on."""


class Process:
    """A program whose output lines are given to `on_line`, in a thread of their own."""

    def __init__(self, *command: str, on_line: Callable[[str], None], cwd: Path = ROOT) -> None:
        self._on_line = on_line
        self._process = subprocess.Popen(
            [sys.executable, *command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._on_line(line.rstrip("\n"))
        self._on_line("")

    @property
    def is_running(self) -> bool:
        """Whether it is still there."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Until it ends."""
        return self._process.wait()

    def stop(self) -> None:
        """End it well, or at least end it."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Daemon:
    """``twistd -n synrepl``; known to be ready by what it says."""

    def __init__(self, data: Path, port: int, http_port: int) -> None:
        self.follow = ""
        self.url = ""
        self._said: list[str] = []
        self._changed = threading.Condition()
        self._process = Process(
            "-c",
            "from twisted.scripts.twistd import run; run()",
            "--nodaemon",
            "--pidfile=",
            "synrepl",
            "--listen",
            f"tcp:{port}:interface=127.0.0.1",
            "--http",
            f"tcp:{http_port}:interface=127.0.0.1",
            "--database",
            f"sqlite:{data / 'synrepl.db'}",
            on_line=self._line,
        )

    def _line(self, line: str) -> None:
        with self._changed:
            if line:
                self._said.append(line)
            self._changed.notify_all()

    def wait_until_ready(self) -> None:
        """Until it listens everywhere."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready() or not self._process.is_running, PATIENCE_SECONDS)
            if not self._is_ready():
                raise Failed("\n".join(self._said[-3:]) or "the daemon did not start")
            for line in self._said:
                if found := re.search(r"(followers|http): listening at tcp:(\S+?)(,|$)", line):
                    if found[1] == "http":
                        self.url = f"http://{found[2]}"
                    else:
                        self.follow = found[2]

    def _is_ready(self) -> bool:
        return any("ready:" in line for line in self._said)

    def wait(self) -> None:
        """Until it ends."""
        self._process.wait()

    def stop(self) -> None:
        """End it."""
        self._process.stop()


class Worker:
    """A follower of one age; counts the rows it is told, by stream."""

    def __init__(self, dialect: str, daemon: Daemon) -> None:
        self.dialect = dialect
        self.rows: Counter[str] = Counter()
        self.errors: list[str] = []
        self._positions: set[str] = set()
        self._changed = threading.Condition()
        self._process = Process(
            "-m", "synrepl", "tail", daemon.follow, "--dialect", dialect, "--http", daemon.url,
            "--name", f"demo-{dialect}", on_line=self._line,
        )  # fmt: skip

    def _line(self, line: str) -> None:
        with self._changed:
            try:
                told = json.loads(line)
            except ValueError:
                self.errors += [line] if line else []
            else:
                match told["type"]:
                    case "rdata":
                        self.rows[told["stream"]] += len(told["rows"])
                    case "position":
                        self._positions.add(told["stream"])
                    case "error":
                        self.errors.append(told["message"])
            self._changed.notify_all()

    def wait_until_live(self, streams: Iterable[str]) -> None:
        """Until it knows where each of these streams stands: from then on it misses nothing."""
        self._wait(lambda: self._positions.issuperset(streams))

    def wait_for(self, wanted: Counter[str]) -> None:
        """Until it has been told as many rows as this."""
        self._wait(lambda: self.rows >= wanted)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: is_done() or not self._process.is_running, PATIENCE_SECONDS)

    def stop(self) -> None:
        """End it."""
        self._process.stop()


def recorded() -> Counter[str]:
    """Rows in the recordings, by stream."""
    table = StreamTable.default()
    rows: Counter[str] = Counter()
    for path in RECORDINGS:
        for fact in read(path.read_bytes(), table).facts:
            rows[fact.stream] += len(fact.rows)
    return rows


def known_to(dialect: str) -> set[str]:
    """The streams that workers of this age know."""
    return {stream.name for stream in StreamTable.default().known_to(Dialect.parse(dialect))}


def replay(path: Path, daemon: Daemon) -> None:
    """Put a recorded session in."""
    command = [sys.executable, "-m", "synrepl", "replay", str(path), "--url", daemon.url, "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Failed(f"replaying {path} failed")
    told = json.loads(done.stdout)
    console.print(
        f"replayed {path.relative_to(ROOT)}: {told['rows']} rows of a Synapse that speaks"
        f" {told['dialect']}, in {told['seconds']:.1f} s"
    )


def compare(wanted: Counter[str], workers: list[Worker]) -> bool:
    """Show what was in the recordings beside what each worker was told; True if they are the same."""
    table = Table("stream", "recorded", *(f"{worker.dialect} worker" for worker in workers), "")
    for column in table.columns[1:-1]:
        column.justify = "right"
    is_fine = True
    for stream in sorted(wanted):
        cells, verdict = [], "OK"
        for worker in workers:
            told = worker.rows[stream]
            if stream in known_to(worker.dialect):
                cells.append(str(told))
                difference = told - wanted[stream]
            else:
                cells.append("unknown to it" if not told else str(told))
                difference = told
            if difference:
                verdict, is_fine = f"{worker.dialect}: {difference:+d}", False
        table.add_row(stream, str(wanted[stream]), *cells, verdict)
    console.print(table)
    for worker in workers:
        for error in worker.errors:
            is_fine = False
            console.print(f"the {worker.dialect} worker reports: {error}", style="red", markup=False)
    return is_fine


def demonstrate(daemon: Daemon) -> bool:
    """Facts in, facts out, compared."""
    wanted = recorded()
    workers = [Worker(dialect, daemon) for dialect in DIALECTS]
    try:
        for worker in workers:
            worker.wait_until_live(known_to(worker.dialect) & set(wanted))
        for path in RECORDINGS:
            replay(path, daemon)
        for worker in workers:
            known = known_to(worker.dialect)
            worker.wait_for(Counter({stream: rows for stream, rows in wanted.items() if stream in known}))
        return compare(wanted, workers)
    finally:
        for worker in workers:
            worker.stop()


def main() -> int:
    """Run it; the exit code says whether everything came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("run-data"), help="where the log is kept [run-data]"
    )
    parser.add_argument("--port", type=int, default=9092, help="for followers [9092]")
    parser.add_argument("--http-port", type=int, default=9093, help="for HTTP [9093]")
    parser.add_argument("--once", action="store_true", help="end after the comparison")
    options = parser.parse_args()
    data = options.data.resolve()
    data.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    daemon = Daemon(data, options.port, options.http_port)
    try:
        daemon.wait_until_ready()
        console.print(
            f"the daemon serves followers at {daemon.follow} and HTTP at {daemon.url}; its log is in {data}"
        )
        is_fine = demonstrate(daemon)
        console.print("everything came out, once" if is_fine else "NOT everything came out as it went in")
        if not options.once:
            host, port = daemon.follow.rsplit(":", 1)
            console.print("\nIt goes on serving until Ctrl-C. To look:", markup=False)
            console.print(f"  printf 'NAME me\\nREPLICATE ALL NOW\\n' | nc {host} {port}", markup=False)
            console.print(f"  synrepl tail {daemon.follow} --http {daemon.url}", markup=False)
            console.print(
                f"  synrepl status --url {daemon.url}      or {daemon.url}/status in a browser", markup=False
            )
            daemon.wait()
        return 0 if is_fine else 1
    except Failed as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        daemon.stop()


if __name__ == "__main__":
    sys.exit(main())
