"""Declaration of settings: each part of the daemon declares those it needs in a frozen dataclass of its own.

`synrepl.config.Settings` inherits from all these classes, so that the daemon passes it whole to each part.
The parsers accept the text of a flag and the value of a file. An invalid value raises a `ConfigError` whose
text follows the name of the setting.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from synrepl.base.notes import Notes
from synrepl.errors import ConfigError

SIZES: Final = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
DURATIONS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}

UNNAMED: Final = "localhost"
"""The server name of an unconfigured daemon. It is not stored: a real name may be configured later."""

Parser = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A declared setting.

    `parse` accepts the text of a flag and the value of a file. `example` is a value as in the file, shown for
    a setting without a default. `group` is the heading of the manual that it belongs to.
    """

    name: str
    group: str
    default: Any
    help: str
    parse: Parser
    metavar: str
    kind: str  # "value", "switch", "list" (a repeatable flag) or "file" (a file key without a flag)
    example: str

    @property
    def flag(self) -> str:
        """The name on the command line, without leading dashes."""
        return self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as shown in help."""
        if self.default in (None, {}, ()):
            return "none"
        if isinstance(self.default, tuple):
            return " ".join(self.default)
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return str(self.default)


def setting(
    default: Any,
    help: str,
    *,
    parse: Parser,
    metavar: str | None = None,
    kind: str | None = None,
    example: str = "",
) -> Any:
    """Declare a field of a part's settings. The default is written as in the file.

    If the default is None, None is a valid value. Without `metavar` and `kind`, the parser determines them.
    """

    def parse_optional(value: Any) -> Any:
        return None if value is None and default is None else parse(value)

    declared = {
        "default": default,
        "help": help,
        "parse": parse_optional,
        "metavar": metavar or METAVARS.get(parse, "TEXT"),
        "kind": kind or ("switch" if parse is switch else "value"),
        "example": example,
    }
    return dataclasses.field(default_factory=lambda: parse_optional(default), metadata={"setting": declared})


def text(value: Any) -> str:
    """Parse a text that is not empty."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
        raise ConfigError(f"must be a text that is not empty, not {value!r}")
    return str(value)


def word(value: Any) -> str:
    """Parse a name that goes over the wire."""
    name = text(value)
    if name.split() != [name] or not name.isprintable():
        raise ConfigError(f"must be one word of printable characters, not {value!r}")
    return name


def duration(value: Any) -> float:
    """Parse a duration, such as 90 (seconds), 30s, 1.5h or 7d. Returns seconds."""
    given = str(value).strip()
    number = given.rstrip("mshdw")
    try:
        seconds = float(number) * DURATIONS[given[len(number) :]] if given.isascii() else 0.0
    except (KeyError, ValueError):
        seconds = 0.0
    if isinstance(value, bool) or not 0 < seconds < float("inf"):
        raise ConfigError(f"must be a number of seconds above 0, such as 90 or 30s, 5m, 7d, not {value!r}")
    return seconds


def duration_or_zero(value: Any) -> float:
    """Parse a duration, or 0, which stands for no limit. Returns seconds."""
    return 0.0 if not isinstance(value, bool) and str(value).strip() == "0" else duration(value)


def size(value: Any) -> int:
    """Parse a number of bytes, such as 1048576 or 1MiB."""
    found = re.fullmatch(r"(\d{1,18}) ?(B|KiB|MiB|GiB|TiB)?", str(value).strip(), re.ASCII)
    number = int(found[1]) * SIZES[found[2] or "B"] if found else 0
    if isinstance(value, bool) or number <= 0:
        raise ConfigError(f"must be a number of bytes above 0, such as 1048576 or 1MiB, not {value!r}")
    return number


def switch(value: Any) -> bool:
    """Parse a boolean."""
    if not isinstance(value, bool):
        raise ConfigError(f"must be true or false, not {value!r}")
    return value


def names(value: Any) -> tuple[str, ...] | None:
    """Parse comma-separated names, or a list of names; return them sorted. An empty value gives None."""
    if value in (None, "", (), []):
        return None
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"must be a list of comma-separated names, not {value!r}")
    return tuple(sorted({word(one) for one in given}))


def path(value: Any) -> Path:
    """Parse the path of a file."""
    return Path(text(value))


def paths(value: Any) -> tuple[Path, ...]:
    """Parse any number of paths."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return tuple(map(path, several))


METAVARS: Final[Mapping[Parser, str]] = MappingProxyType(
    {duration: "DURATION", names: "NAMES", path: "PATH", size: "SIZE", word: "NAME"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NameSettings:
    """The names of a daemon."""

    server_name: str = setting(
        UNNAMED,
        "The server_name of the homeserver, which followers check. The log stores it, and a replica takes"
        " that of its upstream: later starts need not give it.",
        parse=word,
        example="example.org",
    )
    instance_name: str = setting("master", "The instance name of this writer.", parse=word)
    is_named: bool = False
    """Whether a flag or the file gives `server_name`."""

    def server_name_of(self, notes: Notes) -> str:
        """Return the server name in the notes of a log; without one, the configured server name."""
        return notes.get("server_name", self.server_name)

    def expected_name(self, notes: Notes) -> str | None:
        """Return the name that other daemons must have; None if neither the log nor a setting has one."""
        return notes.get("server_name") or (self.server_name if self.is_named else None)
