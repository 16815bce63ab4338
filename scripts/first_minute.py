"""Tries what a new user does first, with the Python that runs it, in an empty environment.

Installs a wheel, then serves, tails, appends, kills, restarts, adds a replica and promotes it, with the
commands of the README, and shows each command with its output. It needs nothing but Python, so that it also
runs in a chroot of a bare system:

    pip wheel --no-deps --wheel-dir dist .
    python3.14 scripts/first_minute.py dist/synrepl-*.whl

    cp dist/synrepl-*.whl scripts/first_minute.py ROOT/tmp
    chroot ROOT sh -c 'python3 /tmp/first_minute.py /tmp/synrepl-*.whl'
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import ExitStack
from pathlib import Path

SECONDS = 30.0
STEP_SECONDS = 0.05


class Trial:
    """A folder with an environment, in which commands run as a user types them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PYTHON", "SYNREPL"))
            },
            "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
        }

    def run(self, command: str, *, until: str = "") -> str:
        """Run a command of the shell to its end, and return what it prints. Exits if it fails.

        The command is repeated until it prints the text `until`, for 30 seconds.
        """
        print(f"$ {command}", flush=True)
        end = time.monotonic() + SECONDS
        while True:
            done = subprocess.run(
                command,
                shell=True,
                check=False,
                cwd=self.folder,
                env=self._environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=300,
            )
            if until in done.stdout or time.monotonic() > end:
                break
        print(done.stdout, end="", flush=True)
        if done.returncode or until not in done.stdout:
            late = f"did not print {until!r} within {SECONDS:g} s"
            sys.exit(f"{command}: {f'exit code {done.returncode}' if done.returncode else late}")
        return done.stdout

    def start(self, command: str, name: str) -> "subprocess.Popen[bytes]":
        """Start a command in the background, whose output goes to the file `name`."""
        print(f"$ {command} >{name} 2>&1 &", flush=True)
        with (self.folder / name).open("ab") as output:
            process = subprocess.Popen(
                command.split(),
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def wait_for(self, text: str, name: str, count: int = 1) -> None:
        """Wait until the output `name` has this text so many times. Exits after 30 seconds."""
        end = time.monotonic() + SECONDS
        while (found := (self.folder / name).read_text()).count(text) < count:
            if time.monotonic() > end:
                sys.exit(f"{name} does not show {text!r} within {SECONDS:g} s:\n{found}")
            time.sleep(STEP_SECONDS)
        print("".join(line for line in found.splitlines(keepends=True) if text in line), end="", flush=True)


def main() -> None:
    """Run the trial."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="the wheel to install")
    parser.add_argument("--port", type=int, default=9092, help="the first of four ports [default: 9092]")
    given = parser.parse_args()
    first, http, second, second_http = given.port, given.port + 1, given.port + 100, given.port + 101
    started = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="first-minute-")))
        venv.create(folder / "venv", with_pip=True)
        trial = Trial(folder, stack)
        trial.run(f"pip install --quiet --disable-pip-version-check {given.wheel.resolve()}")
        print(f"(installed after {time.monotonic() - started:.0f} s)")
        trial.run("synrepl --version")
        serve = (
            f"synrepl serve --server-name example.org --listen tcp:{first}:interface=127.0.0.1"
            f" --http tcp:{http}:interface=127.0.0.1"
        )
        primary = trial.start(serve, "primary.log")
        trial.wait_for("ready: example.org", "primary.log")
        tail = f"synrepl tail tcp:127.0.0.1:{first} --server-name example.org --http http://127.0.0.1:{http}"
        trial.start(tail, "tail.out")
        trial.wait_for('"position","stream":"push_rules"', "tail.out")
        append = f"synrepl append push_rules --url http://127.0.0.1:{http}"
        trial.run(f"""echo '["@ada:example.org"]' | {append}""")
        trial.wait_for("@ada:example.org", "tail.out")

        print("$ kill -9 %1")
        primary.send_signal(signal.SIGKILL)
        primary.wait()
        primary = trial.start(serve, "primary.log")
        trial.wait_for("ready: example.org", "primary.log", 2)
        trial.run(f"""echo '["@bob:example.org"]' | {append}""")
        trial.wait_for("@bob:example.org", "tail.out")

        trial.start(
            f"synrepl serve --database sqlite:replica.db --upstream tcp:127.0.0.1:{first}"
            f" --listen tcp:{second}:interface=127.0.0.1 --http tcp:{second_http}:interface=127.0.0.1",
            "replica.log",
        )
        trial.wait_for("ready: ", "replica.log")
        url = f"--url http://127.0.0.1:{second_http}"
        trial.run(f"synrepl status {url}", until="   live ")
        trial.run(f"synrepl promote {url}")
        trial.run(f"""echo '["@eve:example.org"]' | synrepl append push_rules {url}""")
        tail = f"synrepl tail tcp:127.0.0.1:{second} --http http://127.0.0.1:{second_http}"
        shown = trial.run(f"{tail} --from earliest --exit-after 3")
        for name in ("ada", "bob", "eve"):
            if f"@{name}:example.org" not in shown:
                sys.exit(f"the new primary lacks the fact of {name}")
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"ok: Python {version}, {time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
