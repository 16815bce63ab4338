"""The comparison of two commits by benchmarks: its statistics, its pairs, and what it leaves behind."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from scripts import bench
from scripts.bench_parts import comparison
from scripts.bench_parts.comparison import BadCommit, NotMeasured, Side, compare, measure_in, packages_of
from scripts.bench_parts.differences import difference, interval, pairs_needed
from scripts.bench_parts.measuring import Result

ROOT: Final = Path(__file__).resolve().parent.parent
RUNS: Final = 400
FIGURES: Final = 20


@pytest.mark.parametrize(
    ("count", "error", "expected"),
    [
        (5, 0.05, None),
        (6, 0.05, (1, 6)),
        (9, 0.05, (2, 8)),
        (10, 0.05, (2, 9)),
        (10, 0.0025, (1, 10)),
        (10, 0.0019, None),
        (15, 0.05, (4, 12)),
        (20, 0.05, (6, 15)),
        (20, 0.0025, (3, 18)),
    ],
)
def test_an_interval_is_between_two_of_the_values(
    count: int, error: float, expected: tuple[int, int] | None
) -> None:
    """As tables of the sign test have it; few values and a small error have none."""
    values = list(range(1, count + 1))
    random.Random(1).shuffle(values)

    assert expected == interval(values, error)


@pytest.mark.parametrize(
    ("figures", "expected"), [(1, 6), (2, 7), (20, 10), (25, 10), (26, 11), (102, 12), (103, 13)]
)
def test_more_figures_need_more_pairs(figures: int, expected: int) -> None:
    """They are the fewest for which an interval with the corrected error exists."""
    assert expected == pairs_needed(figures)
    assert interval(range(expected), 0.05 / figures) == (0, expected - 1)
    assert interval(range(expected - 1), 0.05 / figures) is None


@pytest.mark.parametrize(
    ("ratios", "figures", "expected"),
    [
        ([1.1] * 10, 1, "higher"),
        ([0.9] * 10, 1, "lower"),
        ([1.0] * 10, 1, "same"),
        ([1.1] * 9 + [0.9], 1, "higher"),
        ([1.1] * 8 + [0.9] * 2, 1, "same"),
        ([1.1] * 9 + [0.9], 20, "same"),
        ([1.1] * 9 + [1.0], 20, "same"),
        ([1.1] * 10, 25, "higher"),
        ([1.1] * 10, 26, None),
    ],
)
def test_a_difference_is_one_if_its_corrected_interval_is_on_one_side(
    ratios: list[float], figures: int, expected: str | None
) -> None:
    """The more figures, the more pairs must agree. Without enough pairs there is no verdict."""
    assert expected == difference(ratios, figures).verdict


def test_a_difference_is_in_per_cent_of_the_first_side() -> None:
    """With the interval of the median, of which the lowest and the highest of ten are no part."""
    found = difference([0.5, 1.0, 1.1, 1.1, 1.2, 1.2, 1.2, 1.3, 1.4, 9.0], 1)

    assert [20.0, 0.0, 40.0] == pytest.approx([found.percent, found.low, found.high])


def test_few_ratios_are_refused() -> None:
    """No interval of the median exists."""
    with pytest.raises(ValueError, match="5 ratios have no interval: 6 are needed"):
        difference([1.0] * 5, 1)


def noise(source: random.Random) -> float:
    """A time that varies by 3 %."""
    return source.gauss(1, 0.03)


def disturbed(source: random.Random) -> float:
    """A time that varies by 3 %; one in ten is up to twice as long."""
    return noise(source) * (source.uniform(1, 2) if source.random() < 0.1 else 1)


@pytest.mark.parametrize("pairs", [10, 12, 30])
@pytest.mark.parametrize("taken", [noise, disturbed])
@pytest.mark.parametrize("second", [1.0, 1.02])
def test_a_commit_does_not_differ_from_itself(
    pairs: int, taken: Callable[[random.Random], float], second: float
) -> None:
    """In 95 % of runs no figure of twenty does, even if the second of a pair always takes 2 % longer."""
    source = random.Random(20261130)

    def ratios() -> list[float]:
        return [
            taken(source) / taken(source) * (second if pair % 2 == 0 else 1 / second) for pair in range(pairs)
        ]

    sound = 0
    for _ in range(RUNS):
        found = [difference(ratios(), FIGURES).verdict for _ in range(FIGURES)]
        sound += found == ["same"] * FIGURES

    assert sound >= 0.95 * RUNS


@pytest.mark.parametrize(("pairs", "fewest"), [(10, 0.85), (20, 0.99)])
@pytest.mark.parametrize(("factor", "expected"), [(1.1, "higher"), (1 / 1.1, "lower")])
def test_a_change_of_ten_per_cent_is_found(pairs: int, fewest: float, factor: float, expected: str) -> None:
    """With the correction for twenty figures: in most runs of ten pairs, and in nearly all of twenty."""
    source = random.Random(20261130)
    found: list[str | None] = []
    for _ in range(RUNS):
        ratios = [factor * noise(source) / noise(source) for _ in range(pairs)]
        found.append(difference(ratios, FIGURES).verdict)

    assert found.count(expected) >= fewest * RUNS
    assert set(found) <= {expected, "same"}


class Machine:
    """Measures without running anything: `values` by side and benchmark, or the reason of a failure."""

    def __init__(self, **values: Mapping[str, list[Result] | str]) -> None:
        self.asked: list[tuple[Side, str]] = []
        self.said: list[str] = []
        self._values = {"commit": values["commit"], "working tree": values["tree"]}

    def measure(self, side: Side, name: str) -> list[Result]:
        self.asked.append((side, name))
        found = self._values[side][name]
        if isinstance(found, str):
            raise NotMeasured(found)
        return found


def time_of(value: float) -> list[Result]:
    """One figure."""
    return [Result("work", value, "ms")]


def test_sides_are_measured_in_turn() -> None:
    """Each is first in every second pair, so that the machine's drift within a pair meets both."""
    machine = Machine(commit={"one": time_of(2)}, tree={"one": time_of(1)})

    found = compare(machine.measure, ["one"], None, machine.said.append)

    order: list[tuple[Side, str]] = [("commit", "one"), ("working tree", "one")]
    assert machine.asked == (order + order[::-1]) * 5
    assert machine.said[:1] == ["pair 1/10: one"]
    (last,) = machine.said[9:]
    assert re.fullmatch(r"pair 10/10, \d+:\d\d left: one", last)
    assert (10, 6) == (found.pairs, found.pairs_needed)
    (figure,) = found.figures
    assert ("one", "work", "ms", 2, 1) == (
        figure.work, figure.what, figure.unit, figure.commit, figure.working_tree
    )  # fmt: skip
    assert (-50, -50, -50, "faster") == (figure.percent, figure.low, figure.high, figure.verdict)


@pytest.mark.parametrize(
    ("unit", "lower", "higher"),
    [
        ("us a row", "faster", "slower"),
        ("us/row", "faster", "slower"),
        ("ms", "faster", "slower"),
        ("s", "faster", "slower"),
        ("rows/s", "slower", "faster"),
        ("rows/s to 50", "slower", "faster"),
        ("% of a core", "less", "more"),
        ("MiB", "less", "more"),
    ],
)
def test_a_unit_says_what_is_better(unit: str, lower: str, higher: str) -> None:
    """More rows a second are faster, more seconds are slower, and memory is neither."""
    for after, expected in ((1.0, lower), (3.0, higher), (2.0, "no difference")):
        machine = Machine(
            commit={"one": [Result("work", 2.0, unit)]}, tree={"one": [Result("work", after, unit)]}
        )

        (figure,) = compare(machine.measure, ["one"], 10, machine.said.append).figures

        assert expected == figure.verdict


@pytest.mark.parametrize("unit", ["x", "%"])
def test_ratios_are_not_compared(unit: str) -> None:
    """Both of their parts are."""
    machine = Machine(
        commit={"one": [Result("a / b", 2.0, unit)]}, tree={"one": [Result("a / b", 1.0, unit)]}
    )

    found = compare(machine.measure, ["one"], 10, machine.said.append)

    assert ([], []) == (found.figures, found.uncompared)


def test_a_benchmark_that_fails_does_not_stop_the_others() -> None:
    """It is not run again, at either side."""
    machine = Machine(
        commit={"one": "ImportError: no such feature", "two": time_of(1), "three": time_of(1)},
        tree={"one": time_of(1), "two": "OSError: no", "three": time_of(1)},
    )

    found = compare(machine.measure, ["one", "two", "three"], 10, machine.said.append)

    assert ["three"] == [figure.work for figure in found.figures]
    assert [
        ("one", "ImportError: no such feature", "commit"),
        ("two", "OSError: no", "working tree"),
    ] == [(one.what, one.reason, one.failed_at) for one in found.uncompared]
    assert [1, 2, 20] == [sum(name == one for _, one in machine.asked) for name in ("one", "two", "three")]


def test_figures_without_a_ratio_are_named() -> None:
    """A growth of nothing has none, and what one side lacks neither."""
    machine = Machine(
        commit={"one": [*time_of(1), Result("growth", 0.0, "MiB"), Result("gone", 1.0, "ms")]},
        tree={"one": [*time_of(1), Result("growth", 1.0, "MiB")]},
    )

    found = compare(machine.measure, ["one"], 10, machine.said.append)

    assert ["work"] == [figure.what for figure in found.figures]
    assert [
        ("one: growth", "some values are 0 or less, and have no ratio"),
        ("one: gone", "not every run has it"),
    ] == [(one.what, one.reason) for one in found.uncompared]


def test_many_figures_are_measured_in_more_pairs() -> None:
    """As many as verdicts need. Where a person has named fewer, there are none, and a line says why."""
    many = {"one": [Result(str(number), 1.0, "ms") for number in range(100)]}
    machine = Machine(commit=many, tree=many)

    assert 12 == compare(machine.measure, ["one"], None, machine.said.append).pairs
    assert any(re.fullmatch(r"pair 2/12, \d+:\d\d left: one", said) for said in machine.said)

    found = compare(machine.measure, ["one"], 10, machine.said.append)

    assert (10, 12, {None}) == (found.pairs, found.pairs_needed, {one.verdict for one in found.figures})
    assert "100 figures need 12 pairs for a verdict: 10 give intervals only" in machine.said


BENCH: Final = """
import json, os, signal, sys
signal.signal(signal.SIGTERM, signal.default_int_handler)
from synrepl import SPEED
if sys.argv[3] == "live":
    import socket
    with socket.create_connection(("127.0.0.1", int(os.environ["BENCH_PORT"]))) as connection:
        try:
            connection.sendall(b"ready")
            connection.recv(1)
        except KeyboardInterrupt:
            connection.sendall(b"stopped")
print(json.dumps({sys.argv[3]: [{"what": " ".join(sys.argv[1:]), "value": SPEED, "unit": "ms"}]}))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose package has changed since its commit. Its benchmark prints a constant of it."""
    root = tmp_path / "checkout"
    for name, text in (("synrepl/__init__.py", "SPEED = 1.0"), ("scripts/bench.py", BENCH)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "--message", "One"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "synrepl/__init__.py").write_text("SPEED = 2.0")
    monkeypatch.setattr(comparison, "ROOT", root)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return root


def left_in(root: Path) -> tuple[list[str], list[str]]:
    """The temporary folders, and the checkouts of the repository."""
    listed = subprocess.run(["git", "worktree", "list"], cwd=root, capture_output=True, text=True, check=True)
    return sorted(path.name for path in root.parent.iterdir()), listed.stdout.splitlines()[1:]


def test_only_the_package_differs_between_sides(root: Path) -> None:
    """The benchmark of the working tree measures both, in the packages of each. Nothing of them is left."""
    with packages_of("HEAD") as sides:
        measure = measure_in(sides, ["--quick"])
        (commit,), (tree,) = measure("commit", "idle"), measure("working tree", "idle")

    assert ("--json --only idle --quick", 1.0) == (commit.what, commit.value)
    assert ("--json --only idle --quick", 2.0) == (tree.what, tree.value)
    assert (["checkout"], []) == left_in(root)


def test_a_failure_is_told_in_one_line(root: Path) -> None:
    """The first exception is the cause; those after it are of the programs that waited."""
    (root / "scripts/bench.py").write_text("""
try:
    from synrepl import GONE
except ImportError as error:
    raise OSError("ended") from error
""")

    with (
        packages_of("HEAD") as sides,
        pytest.raises(NotMeasured, match=r"^ImportError: cannot import name 'GONE'.*$"),
    ):
        measure_in(sides, [])("commit", "idle")

    assert (["checkout"], []) == left_in(root)


def test_an_unknown_commit_is_refused(root: Path) -> None:
    """By its name, and nothing is made for it."""
    with pytest.raises(BadCommit, match=r"^no commit 'gone'$"), packages_of("gone"):
        raise AssertionError

    assert (["checkout"], []) == left_in(root)


def test_a_commit_without_the_package_is_refused(root: Path) -> None:
    """As one from before it was named so."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "rm", "-r", "--quiet", "--cached", "synrepl"], cwd=root, check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--message", "Two"], cwd=root, check=True)

    with pytest.raises(BadCommit, match=r"^'HEAD' has no folder synrepl$"), packages_of("HEAD"):
        raise AssertionError

    assert (["checkout"], []) == left_in(root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_leaves_nothing(root: Path, number: signal.Signals) -> None:
    """Neither folders nor processes: the benchmark that runs is told to end."""
    code = f"""
import sys
from pathlib import Path
from scripts import bench
from scripts.bench_parts import comparison
comparison.ROOT = Path({str(root)!r})
sys.argv = ["bench", "--compare", "HEAD", "--only", "live"]
sys.exit(bench.main())
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "BENCH_PORT": str(server.getsockname()[1])},
            stderr=subprocess.PIPE,
            text=True,
        )
        with server.accept()[0] as running:
            running.settimeout(60)
            # Connected is not yet ready to be told to end.
            assert b"ready" == running.recv(5)
            process.send_signal(number)
            said = process.communicate(timeout=60)[1]
            ended = running.recv(100)

    assert (130, "pair 1/10: live\ninterrupted\n") == (process.returncode, said)
    assert b"stopped" == ended
    assert (["checkout"], []) == left_in(root)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--compare gone", "--compare: no commit 'gone'"),
        ("--compare HEAD --pairs 9", "--pairs must be 10 or more"),
        ("--compare HEAD --pairs many", "argument --pairs: invalid int value: 'many'"),
        ("--compare", "argument --compare: expected one argument"),
        ("--pairs 10", "--pairs goes with --compare"),
        ("--only gone", "argument --only: invalid choice: 'gone'"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line(
    root: Path,
    arguments: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With exit code 2, before anything is measured."""
    monkeypatch.setattr("sys.argv", ["bench", *arguments.split()])
    before = signal.getsignal(signal.SIGTERM)

    try:
        with pytest.raises(SystemExit) as ended:
            bench.main()
    finally:
        signal.signal(signal.SIGTERM, before)

    assert 2 == ended.value.code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", bench.PARTS)
def test_every_benchmark_exists(name: str) -> None:
    """They are imported once they are run."""
    found: Callable[..., object] = bench.benchmark(name)

    assert bench.PARTS[name].rpartition(".")[2] == found.__name__
