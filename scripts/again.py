"""Repeat a command until it went well so many times in a row; every pass stays in a table."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = "build/again.jsonl"
RUNNING: Final = "build/again.running.json"
"""The pass that runs. It is found by the next run if this one was cut off."""

USAGE: Final = "usage: scripts/again N [--load PROCESSES] -- COMMAND... | scripts/again --table"
FAILED: Final = re.compile(r"^(?:FAILED|ERROR|\[FAIL\]|\[ERROR\]) (tests\S+)", re.MULTILINE)
PROSE: Final = (".md", ".rst")
"""Files that no test runs by."""

Pass = dict[str, Any]


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Return 0 if the last passes went well, 1 if one did not, 2 for wrong words."""
    if list(words) == ["--table"]:
        print_table(load(root))
        return 0
    head, command = _parted(words)
    if not head or not head[0].isdigit() or not command or len(head) not in (1, 3):
        print(USAGE, file=sys.stderr)
        return 2
    load_processes = int(head[2]) if len(head) == 3 and head[1] == "--load" and head[2].isdigit() else 0
    if len(head) == 3 and not load_processes:
        print(USAGE, file=sys.stderr)
        return 2
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        print("commit what was changed first: a pass counts for a commit", file=sys.stderr)
        return 2
    keep_cut_pass(root)
    while (in_a_row := count_in_a_row(load(root), command, load_processes, root)) < int(head[0]):
        print(f"pass {in_a_row + 1} of {head[0]}: {' '.join(command)}", flush=True)
        found = run_once(command, load_processes, root)
        print_table([found])
        if found["result"]:
            return 1
    return 0


def run_once(
    command: Sequence[str],
    load_processes: int,
    root: Path,
    *,
    table: str = TABLE,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Pass:
    """Run the command once, with these variables in its environment, and append the pass to the table."""
    began = time.time()
    found: Pass = {
        "commit": git(root, "rev-parse", "--short=12", "HEAD"),
        "start": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        "command": [*(f"{name}={value}" for name, value in variables.items()), *command],
        "load": load_processes,
        "table": table,
    }
    (root / "build").mkdir(exist_ok=True)
    (root / RUNNING).write_text(json.dumps(found))
    with busy(load_processes):
        done = subprocess.run(
            command,
            cwd=root,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
        )
    if done.returncode:
        print(done.stdout, flush=True)
    found["minutes"] = round((time.time() - began) / 60, 1)
    found["result"] = done.returncode
    found["failed"] = sorted(set(FAILED.findall(done.stdout)))
    append(root, found.pop("table"), [found])
    (root / RUNNING).unlink()
    return found


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but count."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def count_in_a_row(passes: Sequence[Pass], command: Sequence[str], load_processes: int, root: Path) -> int:
    """How many of the last passes of this command went well, on code that differs in no more than prose."""
    found = 0
    for one in reversed(passes):
        if (one["command"], one["load"]) != (list(command), load_processes):
            continue
        if one["result"] != 0 or not is_same_code(one["commit"], root):
            break
        found += 1
    return found


def is_same_code(commit: str, root: Path) -> bool:
    """Whether the checkout differs from this commit in no more than prose."""
    names = git(root, "diff", "--name-only", commit)
    return names is not None and all(name.endswith(PROSE) for name in names.splitlines())


def load(root: Path, table: str = TABLE) -> list[Pass]:
    """Return the passes, in their order."""
    path = root / table
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def print_table(passes: Sequence[Pass]) -> None:
    """Show a line for each pass."""
    for one in passes:
        result = {0: "passed", None: "cut off"}.get(one["result"], "failed")
        words = " ".join(one["command"]) + (f" (load {one['load']})" if one["load"] else "")
        minutes = f"{one['minutes']:6.1f} min" if one["minutes"] is not None else " " * 10
        print(f"{one['start']}  {one['commit']}  {minutes}  {result:7}  {words}", flush=True)
        for name in one["failed"]:
            print(f"    {name}")


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    found = list(words)
    at = found.index("--") if "--" in found else len(found)
    return found[:at], found[at + 1 :]


def keep_cut_pass(root: Path) -> None:
    """Append the pass that the last run did not end, if there is one, to its table."""
    path = root / RUNNING
    if path.exists():
        found = {**json.loads(path.read_text()), "minutes": None, "result": None, "failed": []}
        append(root, found.pop("table"), [found])
        path.unlink()


def append(root: Path, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append these rows to a table."""
    (root / table).parent.mkdir(exist_ok=True)
    with (root / table).open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())


def git(root: Path, *words: str) -> str | None:
    """Return what git prints; None if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
