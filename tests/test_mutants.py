"""The list of mutants fits the code."""

import subprocess
import tomllib
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from scripts import mutate
from scripts.lib.drawn_mutants import draw, entry, mutations
from scripts.lib.mutants import LIST, BadList, Mutant, complaints, load, mutated

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout of one module and one test."""
    (tmp_path / "synrepl/part").mkdir(parents=True)
    (tmp_path / "synrepl/__init__.py").touch()
    (tmp_path / "synrepl/part/__init__.py").touch()
    (tmp_path / "synrepl/part/module.py").write_text("def least(a, b):\n    return min(a, b)\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_module.py").write_text("class TestLeast:\n    def test_it(self): pass\n")
    return tmp_path


def mutant(**changed: Any) -> Mutant:
    """A sound one, but for this."""
    given = {
        "id": "least-is-most",
        "file": "synrepl/part/module.py",
        "old": "min(",
        "new": "max(",
        "tests": "tests/test_module.py::TestLeast::test_it -k 'it and not all'",
    }
    return Mutant(**given | changed)


def test_every_mutant_fits_the_code() -> None:
    """Whoever changes a line that a mutant changes finds out here, and moves the mutant along."""
    assert [] == complaints(ROOT, load(ROOT))


def test_a_mutant_that_fits_is_put_in(root: Path) -> None:
    """The text around it stays."""
    assert [] == complaints(root, [mutant()])
    assert "def least(a, b):\n    return max(a, b)\n" == mutated(root, mutant())
    assert "part" == mutant().package


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"old": "gone("}, "holds its old text 0 times, not once"),
        ({"old": "least", "new": "most", "file": "tests/test_module.py"}, "is not below synrepl/"),
        ({"old": "a,", "new": "c,"}, "holds its old text 2 times, not once"),
        ({"file": "synrepl/gone.py"}, "cannot read synrepl/gone.py"),
        ({"new": "min("}, "old and new text are the same"),
        ({"new": "max)("}, "unmatched"),
        ({"new": "min( "}, "the fault changes no code"),
        ({"tests": ""}, "needs either tests or equivalent"),
        ({"equivalent": "nobody asks"}, "needs either tests or equivalent"),
        ({"tests": "tests/test_gone.py"}, "there is no test tests/test_gone.py"),
        ({"tests": "tests/test_module.py::test_it"}, "there is no test tests/test_module.py::test_it"),
        ({"tests": "trial:tests.trial.test_gone"}, "there is no test trial:tests.trial.test_gone"),
        ({"tests": "tests/test_module.py trial:tests.test_module"}, "stands alone in tests"),
        ({"id": "Least"}, "words in lower case, joined by hyphens"),
    ],
)
def test_a_mutant_that_does_not_fit_is_named(root: Path, changed: dict[str, str], complaint: str) -> None:
    """With the mutant it is about, in one line."""
    found = complaints(root, [mutant(**changed)])

    assert [True] == [complaint in line for line in found]
    assert mutant(**changed).id in found[0]


def test_two_of_one_name_are_reported(root: Path) -> None:
    """One of them could not be asked for."""
    assert ["least-is-most is listed 2 times"] == complaints(root, [mutant(), mutant()])


@pytest.mark.parametrize("text", ["[[mutant]\n", "[[mutant]]\nid = 'x'\n", "[[mutant]]\nname = 'x'\n"])
def test_a_list_that_cannot_be_read_is_reported(root: Path, text: str) -> None:
    """A field misspelled would otherwise be a mutant that is never tried."""
    (root / LIST).write_text(text)

    with pytest.raises(BadList, match=LIST):
        load(root)


def test_the_result_of_each_mutant_is_reported(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy: the checkout is as it was, and nothing is left of the copy's work in it."""
    (root / "tests/test_module.py").write_text(
        "from synrepl.part.module import least\n\n\ndef test_it():\n    assert 1 == least(1, 2)\n"
    )
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    monkeypatch.setattr(mutate, "ROOT", root)
    before = {path: path.read_bytes() for path in root.rglob("*.py")}
    said: list[str] = []
    options = Namespace(jobs=1, timeout=60.0, no_baseline=False)
    tests = "tests/test_module.py"
    given = [
        mutant(tests=tests),
        mutant(id="least-is-first", old="min(a, b)", new="a", tests=tests),
        mutant(id="least-of-others", old="min(a, b)", new="min(b, a)", tests="", equivalent="it is the same"),
    ]

    outcomes = mutate.Mutation(options, said.append).run(given, tmp_path / "folder")

    assert {
        "least-is-most": ("killed", "tests/test_module.py::test_it"),
        "least-is-first": ("SURVIVED", ""),
        "least-of-others": ("equivalent", ""),
    } == {outcome.id: (outcome.verdict, outcome.failed) for outcome in outcomes}
    assert "3 mutants: 1 killed, 1 SURVIVED, 1 equivalent" == mutate._summary(outcomes)
    assert ["passed", "equivalent", "killed", "SURVIVED"] == [line.split()[0] for line in said]
    assert before == {path: path.read_bytes() for path in before}
    (copied,) = (tmp_path / "folder").rglob("module.py")
    assert before[root / "synrepl/part/module.py"] == copied.read_bytes()


def test_tests_that_fail_without_a_fault_are_reported(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would seem to notice everything. So it is with a name that no test has."""
    (root / "tests/test_module.py").write_text("def test_it():\n    assert False\n")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    monkeypatch.setattr(mutate, "ROOT", root)
    options = Namespace(jobs=1, timeout=60.0, no_baseline=False)

    for tests, why in (("", "without any fault these tests fail"), (" -k nothing", "no test matches")):
        given = mutant(tests=f"tests/test_module.py{tests}")
        with pytest.raises(BadList, match=why):
            mutate.Mutation(options, print).run([given], tmp_path / f"folder{len(tests)}")


DRAWN_MODULE: Final = '''"""What least is."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from x import y


class Least:
    """The least."""

    def __repr__(self) -> str:
        return "a" if self else "b"

    async def find(self, a: int, b: int) -> bool:
        """Of two."""
        assert a < 100
        self._logger.info("looking")
        try:
            if a < b and b:
                self.found = 7
                await self.save()
        except OSError:
            self.clear()
            raise ValueError(f"{a < b}") from None
        return a == b
'''


def test_faults_are_drawn_from_what_the_program_does() -> None:
    """Not from docstrings, assertions, logging, texts of exceptions, or what only a type checker reads."""
    lines = DRAWN_MODULE.encode().split(b"\n")

    found = {(lines[one.line - 1].strip().decode(), one.operator, one.new) for one in mutations(DRAWN_MODULE)}

    condition = "if a < b and b:"
    assert found == {
        (condition, "negate-if", "not (a < b and b)"),
        (condition, "and-or", "((a < b) or (b))"),
        (condition, "swap-comparison", "(a) <= (b)"),
        ("self.found = 7", "drop-assignment", "pass"),
        ("self.found = 7", "off-by-one", "8"),
        ("await self.save()", "drop-call", "pass"),
        ("self.clear()", "drop-call", "pass"),
        ("self.clear()", "handler-raises", "raise"),
        ("return a == b", "return-constant", "False"),
        ("return a == b", "swap-comparison", "(a) != (b)"),
    }


def test_a_seed_draws_the_same_mutants_with_the_nearest_tests_first(root: Path) -> None:
    """A run that was stopped goes on with the same; each fits its file, whatever else is like it there."""
    (root / "synrepl/part/module.py").write_text(
        "def least(a, b):\n    return a\n\ndef most(a, b):\n    return a\n"
    )
    (root / "synrepl/part/user.py").write_text("from synrepl.part.module import least\n")
    for name, module in (("test_far", "synrepl.part.user"), ("test_near", "synrepl.part.module")):
        (root / f"tests/{name}.py").write_text(f"import {module}\n")
    (root / "tests/test_module.py").write_text("import synrepl.part.module\n")

    drawn = draw(root, 7, 10)

    assert drawn == draw(root, 7, 10)
    assert {one.mutant.id for one in drawn} == {f"part-module-{line}-return-constant" for line in (2, 5)}
    assert {one.stages for one in drawn} == {
        ("tests/test_module.py", "tests/test_near.py", "tests/test_far.py")
    }
    assert [] == complaints(root, [replace(one.mutant, tests="tests/test_near.py") for one in drawn])
    (root / "synrepl/part/routes.py").write_text("def route(a):\n    return a\n")
    (root / "tests/part").mkdir()
    (unknown,) = [one for one in draw(root, 7, 10) if one.mutant.file == "synrepl/part/routes.py"]
    assert unknown.stages == ("tests/part",), "nobody imports it: it is loaded by its name"
    (listed,) = tomllib.loads(entry(drawn[0]))["mutant"]
    assert replace(drawn[0].mutant, tests="tests/test_module.py") == Mutant(**listed)
