"""Declaration of a setting. Flags, file keys, help and the manual derive from it."""

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["Setting", "setting"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of `Settings`. `parse` accepts the text of a flag and the value of a file."""

    name: str
    default: Any
    help: str
    parse: Callable[[Any], Any]
    metavar: str
    kind: str  # "value", "switch", "list" (a repeatable flag) or "file" (a file key without a flag)

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
    default: Any, help: str, *, parse: Callable[[Any], Any], metavar: str = "TEXT", kind: str = "value"
) -> Any:
    """Declare a field of `Settings`. The default is written as in the file."""
    return dataclasses.field(
        metadata={
            "setting": {"default": default, "help": help, "parse": parse, "metavar": metavar, "kind": kind}
        }
    )
