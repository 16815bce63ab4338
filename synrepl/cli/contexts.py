"""Contexts: the daemons that a user has named, in a TOML file.

The file has the address of each daemon, and the files of its secret and its CAs.
"""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from synrepl.errors import ConfigError, suggest

MAX_BYTES: Final = 1024 * 1024

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class Context(NamedTuple):
    """The address of a daemon, and the files with its secret and with the CAs to trust, if it has them."""

    url: str
    secret_file: Path | None = None
    ca_file: Path | None = None

    @property
    def files(self) -> dict[str, Path]:
        """The files that are named, by their key in the file of contexts."""
        named = {"secret_file": self.secret_file, "ca_file": self.ca_file}
        return {key: path for key, path in named.items() if path is not None}


class Contexts(msgspec.Struct):
    """The contexts of a user. `current` is the name of the one in use, or empty."""

    path: Path
    current: str
    by_name: dict[str, Context]

    @classmethod
    def load(cls) -> "Contexts":
        """Load ``$XDG_CONFIG_HOME/synrepl/contexts.toml``, if the file exists. Raises `ConfigError`."""
        home = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
        path = Path(home) / "synrepl" / "contexts.toml"
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ConfigError(f"{path} is larger than 1 MiB; it is not a file of contexts")
            found = tomllib.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return cls(path, "", {})
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
        return cls(path, *_parse(path, found))

    def get(self, name: str) -> Context:
        """Return a context. Raises `ConfigError` if there is none of this name."""
        if name not in self.by_name:
            hint = suggest(name, list(self.by_name)) or "; synrepl context list shows all"
            raise ConfigError(f"there is no context {name!r} in {self.path}{hint}")
        return self.by_name[name]

    def add(self, name: str, context: Context) -> None:
        """Add or replace a context. Raises `ConfigError` for an invalid name."""
        if NAME.fullmatch(name) is None:
            raise ConfigError(f"name {name!r}: use 1 to 63 letters, digits, - and _, a letter or digit first")
        self.by_name[name] = context

    def save(self) -> None:
        """Replace the file. Raises `ConfigError` if it cannot be written."""
        lines = [f"current = {_quote(self.current)}"] if self.current else []
        for name, context in sorted(self.by_name.items()):
            lines += ["", f"[contexts.{name}]", f"url = {_quote(context.url)}"]
            lines += [f"{key} = {_quote(str(path))}" for key, path in context.files.items()]
        new = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text("\n".join(lines).lstrip() + "\n", "utf-8")
            new.replace(self.path)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from error


def _quote(text: str) -> str:
    """Return a text as a TOML string, which a JSON string is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parse(path: Path, found: dict[str, Any]) -> tuple[str, dict[str, Context]]:
    """Return the current name and the contexts in a parsed file. Raises `ConfigError`."""
    current, tables = found.get("current", ""), found.get("contexts", {})
    if not isinstance(current, str) or not isinstance(tables, dict):
        raise ConfigError(f"{path}: `current` must be a name, and `contexts` a table")
    by_name = {}
    for name, entry in tables.items():
        fields = entry if isinstance(entry, dict) else {}
        url, *files = (fields.get(key) for key in Context._fields)
        if not isinstance(url, str) or not all(isinstance(file, str | None) for file in files):
            raise ConfigError(
                f"{path}: contexts.{name} needs `url`, and may have `secret_file` and `ca_file`, all texts"
            )
        by_name[name] = Context(url, *(None if file is None else Path(file) for file in files))
    return current, by_name
