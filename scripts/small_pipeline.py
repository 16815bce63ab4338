"""Runs each job of the pipeline on 2,000 facts, with the local engine, and prints what it takes.

    small_pipeline.py --bin FOLDER [--facts N]

FOLDER has the programs to try, of an environment with synrepl[archive]; Spark and Java are not needed. With
pandas each job takes about 25 MB more: pyarrow imports it where it is installed. Times are not judged: they
depend on the machine and its load. Exit code 1: a job failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

PORT: Final = 31193
START_SECONDS: Final = 30.0
STEP_SECONDS: Final = 0.05
STREAMS: Final = ("push_rules", "receipts", "device_lists")

JOBS: Final = (
    f"archive --url http://127.0.0.1:{PORT} --archive archive",
    "optimize --archive archive",
    "vacuum --archive archive",
    "compact --archive archive --snapshot snapshot",
    f"audit --archive archive --url http://127.0.0.1:{PORT}",
    "tables --archive archive --out tables",
    "report --archive archive --out report",
    f"replay --archive archive --url http://127.0.0.1:{PORT}",
)


def main() -> None:
    """Serve a log, run the jobs, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--facts", type=int, default=2_000)
    options = parser.parse_args()
    program = str(options.bin.resolve() / "synrepl")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAVA"))}
    with tempfile.TemporaryDirectory(prefix="synrepl-small-") as folder:
        environment = {**ours, "HOME": folder}
        ports = f"--http tcp:{PORT}:interface=127.0.0.1 --listen tcp:{PORT - 1}:interface=127.0.0.1"
        serve = f"serve --server-name small {ports}"
        with Path(folder, "serve.log").open("wb") as log:
            daemon = subprocess.Popen(
                [program, *serve.split()], cwd=folder, env=environment, stdout=log, stderr=log
            )
        try:
            fill(options.facts)
            print(f"{'job':10} {'seconds':>8} {'CPU s':>8} {'MB':>6}   (of {options.facts:,} facts)")
            for job in JOBS:
                measure(program, job, folder, environment)
        finally:
            daemon.terminate()
            daemon.wait()


def fill(count: int) -> None:
    """Append facts of three streams, once the daemon answers."""
    facts = {stream: [row(stream, number) for number in range(count // 3)] for stream in STREAMS}
    facts[STREAMS[0]] += [row(STREAMS[0], number) for number in range(count % 3)]
    appends = [{"stream": stream, "facts": [[one] for one in rows]} for stream, rows in facts.items()]
    body = json.dumps({"appends": appends}).encode()
    until = time.monotonic() + START_SECONDS
    while True:
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/facts", body)
        try:
            with urllib.request.urlopen(request, timeout=START_SECONDS):
                return
        except OSError as error:
            if time.monotonic() > until:
                sys.exit(f"the daemon does not take facts: {error}")
            time.sleep(STEP_SECONDS)


def row(stream: str, number: int) -> list[object]:
    """Return a row of a stream; half of them repeat a key."""
    user = f"@user{number // 2}:small"
    match stream:
        case "receipts":
            return [
                "!room:small",
                "m.read",
                user,
                f"$event{number}",
                None,
                {"ts": 1_795_000_000_000 + number},
            ]
        case "device_lists":
            return [user, False, False]
        case _:
            return [user]


def measure(program: str, job: str, folder: str, environment: dict[str, str]) -> None:
    """Run a job, and print its time, its CPU time and the most memory of its process."""
    words = [program, "pipeline", *job.split()]
    if words[2] != "vacuum":
        words += ["--engine", "local"]
    began = time.monotonic()
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(words[1:])} failed:\n{output}")
    seconds, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    print(f"{words[2]:10} {seconds:8.1f} {cpu:8.2f} {used.ru_maxrss * 1024 / 1e6:6.0f}", flush=True)


if __name__ == "__main__":
    main()
