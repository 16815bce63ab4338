"""Runs every command that the manual prints, and compares what it prints with what the page shows.

Each page is a story in an empty folder, on machines of its own: namespaces of Linux with a network, processes
and names of hosts, so that the commands run as printed, on the ports of the manual.

    printed_commands.py [--list] [--bin FOLDER] [--path FOLDER] [--jobs N] [--skip PAGE] [PAGE...]

`--list` says which commands are not run, and why. `--bin` has the programs to try (default: of this Python),
`--path` is the PYTHONPATH of further packages, `--jobs` the pages that run at a time (default: one more than
there are processors), `--skip` a page that is not run. Ends with 77 if this system allows no namespaces.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.lib.printed_commands import (  # noqa: E402  # after the path
    CHECKED_ELSEWHERE,
    NOT_RUN,
    Block,
    accepts,
    pages,
    read_blocks,
)
from tests.servers.redis import find_redis_servers  # noqa: E402

NO_NAMESPACES: Final = 77
NAMESPACES: Final = [
    *("unshare", "--user", "--map-root-user", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc"),
    "--kill-child",
]
HOSTS: Final = {"berlin": "10.9.0.1", "primary": "10.9.0.1", "paris": "10.9.0.2"}
"""The machines of the manual. The first one is where commands run unless a page says otherwise."""

RUNS_ON: Final = re.compile(
    r"(?<!')\bsynrepl (serve|tail|demo|top)\b|\btwistd (-n|--nodaemon)\b|\bnc "
    r"|--watch|--follow\b"
)
"""Commands that run until they are stopped."""

TIMEOUT: Final = 60.0

NC: Final = """\
#!{python}
import os, socket, sys, threading
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send():
    while data := os.read(0, 4096):
        link.sendall(data)
threading.Thread(target=send, daemon=True).start()
while data := link.recv(4096):
    os.write(1, data)
"""
"""Stands for netcat where that is not installed."""


class Failed(Exception):
    """A command of the manual did not do what its page shows."""


class Running:
    """A program that was started, and what it has printed."""

    def __init__(self, command: str, process: subprocess.Popen[bytes], on: str) -> None:
        self.command = command
        self.on = on
        self.process = process
        self.printed = b""
        self.seen = 0
        """The bytes of `printed` that the page has shown already."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 65_536):
            with self._changed:
                self.printed += data
                self._changed.notify_all()
        self.process.wait()
        with self._changed:
            self._changed.notify_all()

    @property
    def text(self) -> str:
        """The output that the page has not shown yet."""
        return self.printed[self.seen :].decode("utf-8", "replace")

    def wait_to_print(self, pattern: str) -> None:
        """Wait until a line matches. Raises `Failed` if the program ends, or after `TIMEOUT` seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: re.search(pattern, self.text, re.MULTILINE) or self.process.poll() is not None,
                TIMEOUT,
            )
        if not re.search(pattern, self.text, re.MULTILINE):
            raise Failed(f"{self.command}\nwas to print {pattern}, but printed\n{self.text}")

    def wait(self) -> None:
        """Wait for the end of the program and all of its output. Raises `Failed` if it does not end."""
        try:
            self.process.wait(TIMEOUT * 3)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"{self.command}\ndid not end in {TIMEOUT * 3:g} s; it printed\n{self.text}"
            ) from None
        self._thread.join(5)

    def stop(self, by: int = signal.SIGTERM) -> None:
        """Signal the program and the programs that it has started; after 15 s kill them."""
        try:
            os.killpg(self.process.pid, by)
        except ProcessLookupError:
            return
        self._thread.join(15)  # until all programs that it has started have closed their output
        if self._thread.is_alive():
            os.killpg(self.process.pid, signal.SIGKILL)
            self._thread.join(5)


class Story:
    """A page: its folders, one for each machine, and its programs that still run."""

    def __init__(self, page: str, top: Path, environment: dict[str, str]) -> None:
        self.page = page
        self.top = top
        self.environment = environment
        self.running: list[Running] = []
        self.finished: list[Running] = []
        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        self.compared = 0
        self.skipped = 0
        self._numbers = count()

    def run(self) -> None:
        """Run the page from top to bottom. Raises `Failed`."""
        blocks = list(read_blocks(ROOT / self.page))
        section = ""
        for position, block in enumerate(blocks):
            if block.section != section:
                section, self.finished = block.section, []
            following = blocks[position + 1 : position + 2]
            try:
                self._step(block, following[0] if following else None)
            except Failed as failure:
                raise Failed(f"{self.page}:{block.line}: {failure}") from None
        self._end_programs()

    def _end_programs(self, machine: str | None = None) -> None:
        for one in [one for one in self.running[::-1] if machine in (None, one.on)]:
            self.running.remove(one)
            one.stop()
            if "Traceback" in one.printed.decode("utf-8", "replace"):
                raise Failed(f"{self.page}: {one.command}\nprints a traceback:\n{one.printed.decode()}")

    def stop(self) -> None:
        """Kill the programs and machines that still run."""
        for one in self.running:
            one.stop(signal.SIGKILL)
        for process in self.machines.values():
            process.kill()

    def _step(self, block: Block, following: Block | None) -> None:
        if block.kind == "file":
            (self._folder(block.on) / block.name).write_text(self._here(block.text) + "\n", "utf-8")
            return
        is_output = block.kind == "output"
        for machine, command in block.first:
            if command.split()[0] == "stop":
                self._end_programs(command.removeprefix("stop").strip() or None)
            else:
                hidden = Block(block.line, block.section, "commands", command, on=machine)
                self._command(command, hidden, may_fail=is_output)
                self.finished = self.finished[-1:] if is_output else self.finished
        if block.kind == "other":
            return
        if block.not_run:
            self.skipped += is_output
            self.finished = []
            return
        if is_output:
            if self.finished:
                self._compare(block.text)
            else:
                self.skipped += 1
            return
        shows_output = (
            following is not None and following.kind == "output" and following.section == block.section
        )
        self.finished = []
        for command in block.commands:
            if not any(re.search(pattern, command) for pattern in NOT_RUN):
                self._command(command, block, may_fail=shows_output)

    def _command(self, command: str, block: Block, *, may_fail: bool) -> None:
        folder = self._folder(block.on)
        saved = self.top / f"shell-{block.on}"
        script = f"[ -e {saved} ] && . {saved}\n{self._here(command)}\n"
        if not (runs_on := RUNS_ON.search(command) is not None):
            state = "declare -p sha256 ${!SYNREPL_@}; declare -f; umask -p"
            script += f'code=$?\n{{ {state}; }} >{saved} 2>/dev/null\nexit "$code"\n'
        path = self.top / f"command-{next(self._numbers)}"
        path.write_text(script, "utf-8")  # a file, as pgrep would find the words of a command line
        process = subprocess.Popen(
            [*self._at(block.on), "bash", str(path)],
            stdin=subprocess.PIPE if block.typed or "| nc" in command else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=self.environment,
            start_new_session=True,
        )
        if block.typed:
            assert process.stdin is not None
            process.stdin.write(block.typed.replace(";", "\n").encode() + b"\n")
            process.stdin.close()
        one = Running(command, process, block.on or next(iter(HOSTS)))
        self.finished.append(one)
        if not runs_on:
            one.wait()
            if process.returncode and not may_fail:
                raise Failed(f"{command}\nended with exit code {process.returncode}:\n{one.text}")
            return
        self.running.append(one)
        if re.search(r"synrepl serve|\btwistd\b.* synrepl\b", command, re.DOTALL):
            # A replica is ready before it has a copy, which the next command may need.
            one.wait_to_print(r"ready\b(?!.*; joining)|joined\b|live\b")
        else:
            one.wait_to_print(r"\S")
        if "until Ctrl-C" in command:
            one.stop(signal.SIGINT)

    def _here(self, text: str) -> str:
        """Put the directories of the manual below that of the page."""
        return re.sub(r"/(etc/synrepl|var/lib/synrepl|backup)\b", rf"{self.top}/\1", text)

    def _compare(self, shown: str) -> None:
        """Compare with the commands of the last block, or else with a program that runs."""
        ended = "".join(one.text for one in self.finished if one not in self.running)
        ended = ended.replace(str(self.top), "")
        if accepts(shown, ended, is_whole=True):
            self.compared += 1
            return
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for one in self.running:
                size = len(one.printed)
                if accepts(shown, one.text.replace(str(self.top), ""), is_whole=False):
                    one.seen = size
                    self.compared += 1
                    return
            if not self.running:
                break
            with self.running[-1]._changed:
                self.running[-1]._changed.wait(0.2)
        texts = [f"{one.command}\nprinted\n{one.text}" for one in {*self.finished, *self.running}]
        raise Failed(f"the page shows\n{shown}\nbut\n" + "\n".join(texts))

    def _folder(self, machine: str) -> Path:
        folder = self.top / (machine or next(iter(HOSTS)))
        folder.mkdir(exist_ok=True)
        for name in ("etc/synrepl", "var/lib/synrepl", "backup"):
            (self.top / name).mkdir(parents=True, exist_ok=True)
        return folder

    def _at(self, machine: str) -> list[str]:
        """The words that run a command on a machine, which is made at its first use."""
        first = next(iter(HOSTS))
        if machine in ("", first):
            return []
        if not self.machines:
            _call("ip link add lan type bridge")
            _call(f"ip addr add {HOSTS[first]}/24 dev lan")
            _call("ip link set lan up")
        if machine not in self.machines:
            process = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", "echo; read line"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert process.stdout is not None
            process.stdout.readline()
            self.machines[machine] = process
            _call(f"ip link add to-{machine} type veth peer name eth0 netns {process.pid}")
            _call(f"ip link set to-{machine} master lan up")
            inside = f"nsenter --target {process.pid} --net"
            _call(f"{inside} ip link set lo up")
            _call(f"{inside} ip addr add {HOSTS[machine]}/24 dev eth0")
            _call(f"{inside} ip link set eth0 up")
        return ["nsenter", "--target", str(self.machines[machine].pid), "--net"]


def _call(command: str) -> None:
    subprocess.run(command.split(), check=True)


def run_page(page: str, programs: Path, path: str) -> None:
    """Run a page, inside of namespaces. Raises `Failed`."""
    _call("ip link set lo up")
    _call("hostname berlin")
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        hosts = "127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in HOSTS.items())
        if not any(block.on or any(on for on, _ in block.first) for block in read_blocks(ROOT / page)):
            hosts = "127.0.0.1 localhost berlin paris laptop\n"
        (top / "hosts").write_text(hosts)
        _call(f"mount --bind {top / 'hosts'} /etc/hosts")
        (top / ".curlrc").write_text("silent\nshow-error\n")  # as on a terminal
        tools = top / "tools"
        tools.mkdir()
        if shutil.which("nc") is None:
            (tools / "nc").write_text(NC.format(python=sys.executable))
            (tools / "nc").chmod(0o755)
        for program in find_redis_servers()[:1]:
            (tools / "redis-server").symlink_to(program)
        environment = {
            "PATH": f"{programs}:{tools}:{os.environ['PATH']}",
            "HOME": folder,
            "LANG": "C.UTF-8",
            "PYTHONPATH": path,
            # Each Spark lives for seconds here.
            "SPARK_CONF_DIR": str(ROOT / "tests/pipeline/spark_conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        story = Story(page, top, environment)
        try:
            story.run()
        finally:
            story.stop()
            _call("umount /etc/hosts")
        print(f"ok: {page}: {story.compared} outputs as shown, {story.skipped} not compared")


def list_not_run() -> None:
    """Print the commands that are not run, with the reasons."""
    for page, reason in CHECKED_ELSEWHERE.items():
        print(f"{page}: {reason}")
    for page in pages():
        for block in read_blocks(ROOT / page):
            if block.kind == "output" and block.not_run:
                print(f"{page}:{block.line}: output\n    {block.not_run}")
            if block.kind != "commands":
                continue
            for command in block.commands:
                reasons = [reason for pattern, reason in NOT_RUN.items() if re.search(pattern, command)]
                if block.not_run or reasons:
                    print(
                        f"{page}:{block.line}: {command.splitlines()[0]}\n    {block.not_run or reasons[0]}"
                    )


def main() -> int:
    """Run pages, each in namespaces of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="say what is not run, and why")
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent, help="the programs to try")
    parser.add_argument("--path", default="", help="the PYTHONPATH of further packages")
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="pages at a time")
    parser.add_argument("--skip", action="append", default=[], metavar="PAGE", help="not this one")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="default: all of them")
    options = parser.parse_args()
    if options.list:
        list_not_run()
        return 0
    if options.inside:
        try:
            run_page(options.pages[0], options.bin, options.path)
        except Failed as failure:
            print(failure, file=sys.stderr)
            return 1
        return 0
    tried = subprocess.run([*NAMESPACES, "ip", "link"], capture_output=True, text=True, check=False)
    if tried.returncode:
        print(f"the manual's commands were not run: no namespaces: {tried.stderr.strip()}", file=sys.stderr)
        return NO_NAMESPACES

    def run(page: str) -> "subprocess.CompletedProcess[str]":
        inside = ["--inside", "--bin", str(options.bin), "--path", options.path, page]
        return subprocess.run(
            [*NAMESPACES, sys.executable, __file__, *inside],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for ended in pool.map(run, options.pages or [page for page in pages() if page not in options.skip]):
            failed += bool(ended.returncode)
            print(ended.stdout, end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
