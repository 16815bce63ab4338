"""The programs of the manual do what their pages say: as printed, from an empty folder."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, timeout=60, env=ENVIRONMENT
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
    assert "w3 is none of its writers (w1, w2)" in ended.stderr


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
        server.settimeout(30)
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
                said = process.communicate(timeout=30)[0]
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
