"""How a setting is declared: once, and flags, keys of the file, help and the manual derive from it."""

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["Setting", "setting"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of `Settings`: `parse` takes the text of a flag as well as the value in a file."""

    name: str
    default: Any
    help: str
    parse: Callable[[Any], Any]
    metavar: str
    kind: str  # "value", "switch", "list" (a flag that may be repeated) or "file" (not a flag at all)

    @property
    def flag(self) -> str:
        """The name on the command line, without its dashes."""
        return self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default, for people."""
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
    """Declares a line of `Settings`. The default is written as it would be in the file."""
    return dataclasses.field(
        metadata={
            "setting": {"default": default, "help": help, "parse": parse, "metavar": metavar, "kind": kind}
        }
    )
