"""Take rooms away in a copy of the checkout, and try what is left (scripts/rooms says how it is called)."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CORE_STORIES: Final = ("clients_follow_us", "we_follow_servers", "caches", "homeserver")
"""The tests with real Synapse releases that need no room."""
SECONDS: Final = 60.0
"""How long a daemon may take to start, and a fact to arrive."""
ROOM: Final = re.compile(r'^ +"(\w+) = synrepl\.\1\.room:\w+",\n', re.MULTILINE)
"""The line of a room in setup.py."""
CONTRACT: Final = "[[tool.importlinter.contracts]]\n"

IMPORT_ALL: Final = """
import importlib, pkgutil, synrepl
for module in pkgutil.walk_packages(synrepl.__path__, "synrepl."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


class Broken(Exception):
    """What is left does not work."""


def main(words: Sequence[str]) -> int:
    """Return 0 if everything that is left works, 1 if not, 2 for wrong words."""
    flags = {word for word in words if word.startswith("--")}
    named = [word for word in words if word not in flags]
    rooms = ROOM.findall((ROOT / "setup.py").read_text("utf-8"))
    unknown = [word for word in named if word not in (*rooms, "each", "all")]
    if unknown or flags - {"--tests", "--lint", "--whole", "--interop"}:
        print(f"rooms are {', '.join(rooms)}; scripts/rooms --help", file=sys.stderr)
        return 2
    flags |= {"--tests", "--lint"} if "--whole" in flags else set()
    variants: list[list[str]] = [[room] for room in rooms] if not named or "each" in named else []
    variants += [rooms] if not named or "all" in named else []
    variants += [chosen] if (chosen := [word for word in named if word in rooms]) else []
    failed = False
    for absent in variants:
        what = "without any room" if absent == rooms else f"without {', '.join(absent)}"
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="synrepl-rooms-") as folder:
                rest = Rest(Path(folder), absent)
                rest.check(tests="--tests" in flags, lint="--lint" in flags)
                if "--interop" in flags:
                    rest.meet_synapse()
        except Broken as error:
            failed = True
            print(f"FAILED {what}: {error}", flush=True)
        else:
            print(f"ok: {what} ({time.monotonic() - began:.0f} s)", flush=True)
    return 1 if failed else 0


class Rest:
    """A copy of the checkout without these rooms, installed in an environment of its own."""

    def __init__(self, folder: Path, absent: Sequence[str]) -> None:
        self.checkout = folder / "checkout"
        self._absent = absent
        self._python = folder / "venv" / "bin" / "python"
        _copy(self.checkout)
        for room in absent:
            shutil.rmtree(self.checkout / "synrepl" / room)
            shutil.rmtree(self.checkout / "tests" / room, ignore_errors=True)
        for path, change in (("setup.py", without_entry_points), ("pyproject.toml", without_contracts)):
            text = (self.checkout / path).read_text("utf-8")
            (self.checkout / path).write_text(change(text, absent), "utf-8")
        self._install(folder / "venv")

    def _install(self, venv: Path) -> None:
        """Make an environment with the libraries of this one, and install the copy."""
        self._run(sys.executable, "-m", "venv", "--without-pip", str(venv))
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        here = Path(sys.prefix) / "lib" / version / "site-packages"
        there = venv / "lib" / version / "site-packages"
        for entry in here.iterdir():
            if not re.match(r"_*(editable_+)?synrepl\b", entry.name, re.IGNORECASE):
                (there / entry.name).symlink_to(entry)
        for program in ("lint-imports", "mypy", "ruff", "twistd"):
            text = (Path(sys.prefix) / "bin" / program).read_bytes()
            if text.startswith(b"#!"):
                text = re.sub(rb"\A#!.*", b"#!" + os.fsencode(self._python), text)
            (venv / "bin" / program).write_bytes(text)
            (venv / "bin" / program).chmod(0o755)
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--native-tls"]
        asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        configured = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        index = os.environ.get("PIP_INDEX_URL") or configured
        uv += ["--default-index", index] if index else []
        self._run(*uv, "--python", str(self._python), "--no-deps", "--editable", str(self.checkout))

    def check(self, *, tests: bool, lint: bool) -> None:
        """Raises `Broken` at the first thing that does not work."""
        self._run(str(self._python), "-c", IMPORT_ALL)
        self._run(*self._synrepl("--help"))
        self._follow()
        self._ask_for_what_is_missing()
        if lint:
            for linter in (["ruff", "check", "synrepl", "tests"], ["mypy", "synrepl"], ["lint-imports"]):
                self._run(str(self._python.parent / linter[0]), *linter[1:])
        if tests:
            workers = str(min((os.cpu_count() or 2) + 1, 4))
            pytest = [str(self._python), "-m", "pytest", "-q", "tests", "-n", workers, "--dist", "worksteal"]
            self._run(*pytest, "-m", "not slow and not spark", is_long=True)

    def meet_synapse(self) -> None:
        """Run the core's stories with real releases of Synapse. Raises `Broken`."""
        files = [f"tests/interop/test_{name}.py" for name in CORE_STORIES]
        pytest = [str(self._python), "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile", *files]
        said = self._run(*pytest, is_long=True, SYNREPL_INTEROP="legacy current homeserver")
        print("\n".join(said.splitlines()[-12:]), flush=True)

    def _synrepl(self, *words: str) -> list[str]:
        return [str(self._python), "-m", "synrepl", *words]

    def _follow(self) -> None:
        """Serve, follow and append, and see the row at the follower."""
        with self._daemon() as (tcp, http):
            tail = self._synrepl("tail", f"tcp:127.0.0.1:{tcp}", "--http", http, "--stream", "caches")
            with _started(tail, self.checkout) as follower:
                _wait_for(follower, '"position"')
                row = '["cs_cache_fake", ["!a:hs.test"], 1]\n'
                self._run(*self._synrepl("append", "caches", "--url", http), text=row)
                _wait_for(follower, "cs_cache_fake")

    @contextmanager
    def _daemon(self) -> Iterator[tuple[int, str]]:
        tcp, http = _free_port(), _free_port()
        url = f"http://127.0.0.1:{http}"
        with tempfile.TemporaryDirectory(dir=self.checkout.parent) as folder:
            words = ["serve", "--server-name", "hs.test", "--database", f"sqlite:{folder}/log.db"]
            words += [
                "--listen",
                f"tcp:{tcp}:interface=127.0.0.1",
                "--http",
                f"tcp:{http}:interface=127.0.0.1",
            ]
            with _started(self._synrepl(*words), self.checkout) as daemon:
                _wait_for(daemon, "ready: ")
                yield tcp, url

    def _ask_for_what_is_missing(self) -> None:
        """What belongs to an absent room is refused with its name."""
        owners: Mapping[str, Mapping[str, str]] = json.loads(
            (self.checkout / "synrepl" / "missing_rooms.json").read_text("utf-8")
        )
        for room in self._absent:
            why = f"it belongs to {room}, which is not installed"
            for setting in [name for name, owner in owners["settings"].items() if owner == room][:1]:
                self._refuse(why, "serve", f"--{setting.replace('_', '-')}", "x")
            for command in [name for name, owner in owners["commands"].items() if owner == room][:1]:
                self._refuse(why, command)

    def _refuse(self, why: str, *words: str) -> None:
        ended = subprocess.run(
            self._synrepl(*words), capture_output=True, text=True, cwd=self.checkout, check=False
        )
        if why not in ended.stderr or ended.stderr.count("\n") != 1:
            raise Broken(f"synrepl {' '.join(words)} says {ended.stderr[-500:]!r}, not {why!r}")

    def _run(self, *command: str, text: str = "", is_long: bool = False, **variables: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ended = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.checkout,
            env=environment | variables,
            check=False,
        )
        if ended.returncode:
            shown = ended.stdout[-20_000 if is_long else -3_000 :]
            raise Broken(f"{' '.join(command[:6])} ended with {ended.returncode}:\n{shown}")
        return ended.stdout


def _copy(checkout: Path) -> None:
    """Copy what git knows of this checkout, as it is now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)


def without_entry_points(text: str, absent: Sequence[str]) -> str:
    """Drop the lines of these rooms from the text of setup.py."""
    return ROOM.sub(lambda line: "" if line[1] in absent else line[0], text)


def without_contracts(text: str, absent: Sequence[str]) -> str:
    """Drop what import-linter's contracts say of these rooms, and the contracts that are of them alone."""
    first, *contracts = text.split(CONTRACT)
    named = re.compile(rf'"[^"]*\bsynrepl\.(?:{"|".join(absent)})\b[^"]*"(?:,\s*|(?=\s*\]))')
    left = [named.sub("", one) for one in contracts]
    return CONTRACT.join([first, *(one for one in left if not re.search(r"source_modules = \[\s*\]", one))])


@contextmanager
def _started(command: Sequence[str], folder: Path) -> Iterator[Path]:
    """Run a program beside; yields the file with what it says."""
    said = Path(tempfile.mkstemp(dir=folder.parent)[1])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with said.open("wb") as file:
        program = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder, env=environment)
    try:
        yield said
    finally:
        program.terminate()
        program.wait(30)


def _wait_for(said: Path, text: str) -> None:
    until = time.monotonic() + SECONDS
    while text not in said.read_text("utf-8", "replace"):
        if time.monotonic() > until:
            raise Broken(f"{text!r} was not said: {said.read_text('utf-8', 'replace')[-2000:]}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
