"""The settings of files by checksum."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from synrepl.base.settings import path, setting, size
from synrepl.errors import ConfigError
from synrepl.storage.settings import LogSettings


def fetch_rule(value: Any) -> str:
    """Parse the rule by which a replica fetches files."""
    if value not in ("eager", "lazy"):
        raise ConfigError(f"must be eager or lazy, not {value!r}")
    return str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesSettings(LogSettings):
    """Where a daemon stores files, and when a replica fetches them."""

    files: Path | None = setting(
        None,
        "The directory for files by checksum. None: the path of the database with .files appended.",
        parse=path,
        metavar="DIR",
        example="/var/lib/synrepl/files",
    )
    fetch_files: Literal["eager", "lazy"] = setting(
        "eager",
        "When a replica fetches a file: eager (at once) or lazy (when a client requests it).",
        parse=fetch_rule,
        metavar="RULE",
    )
    max_file_bytes: int = setting("16GiB", "The size limit of a file, uploaded or fetched.", parse=size)

    @property
    def files_path(self) -> Path:
        """The directory for files by checksum."""
        path = self.database_path
        return self.files if self.files is not None else path.with_name(f"{path.name}.files")
