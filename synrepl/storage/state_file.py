"""A small file beside a database in a file, which says how far the log had come.

A database that is an older copy, or that lost its ``-wal``, is a good database: only something outside it can
tell that facts are missing. The file may lag behind the log. So it never says that a log is too new.
"""

from pathlib import Path
from typing import Final

import msgspec

from synrepl.errors import StorageError
from synrepl.storage.private_files import replace_private

__all__ = ["StateFile", "Summary"]

VERSION: Final = 1


class Summary(msgspec.Struct, frozen=True):
    """How far a log has come, and which log it is. Without a history there is no log yet."""

    history: str = ""
    uuid: str = ""
    server_name: str = ""
    boots: int = 0
    epoch: int = 0
    serial: int = 0
    digest: str = ""

    def describe(self) -> str:
        """For a person."""
        if not self.history:
            return "nothing"
        return f"serial {self.serial} in epoch {self.epoch} after {self.boots} starts"

    def follows(self, recorded: "Summary") -> bool:
        """Whether a log that is here may be the recorded one, as it was then or later."""
        return (self.history, self.uuid) == (recorded.history, recorded.uuid) and all(
            now >= before
            for now, before in (
                (self.boots, recorded.boots),
                (self.epoch, recorded.epoch),
                (self.serial, recorded.serial),
            )
        )


class DatabaseState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is in the file. `adopting` is a copy that is taking the log's place, or has just taken it."""

    version: int
    log: Summary
    adopting: Summary | None = None


class StateFile:
    """The file at `path`, replaced whole each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: DatabaseState | None = None

    def read(self) -> list[Summary]:
        """The logs of which one must be here; none if nothing is known."""
        try:
            state = msgspec.json.decode(self.path.read_bytes(), type=DatabaseState)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._unfit(str(error)) from error
        if state.version != VERSION:
            raise self._unfit(f"its version is {state.version}, this release knows {VERSION}")
        return [state.log] if state.adopting is None else [state.log, state.adopting]

    def write(self, log: Summary, adopting: Summary | None = None) -> None:
        """Keep this through a power cut, unless it is there already. Raises `StorageError`."""
        state = DatabaseState(VERSION, log, adopting)
        if state == self._written:
            return
        # What is there is not known while it is being replaced.
        self._written = None
        try:
            replace_private(self.path, msgspec.json.encode(state) + b"\n")
        except OSError as error:
            raise self._failed(error) from error
        self._written = state

    def refusal(self, found: Summary, recorded: Summary, database: str) -> StorageError:
        """Why a database that does not fit is not opened."""
        if found.follows(recorded):
            less = f", and the log at its serial {recorded.serial} is another one"
        elif found.history and found.history != recorded.history:
            of = f" of {recorded.server_name}" if recorded.server_name else ""
            less = f" of history {recorded.history}{of}, which this is not"
        else:
            less = ""
        return StorageError(
            op="open",
            why=f"{database} holds {found.describe()}, but {self.path} says that the log had reached"
            f" {recorded.describe()}{less}",
            hint=f"restore what is missing, {database} or {database}-wal; if this database was put here on"
            f" purpose, as a copy that was restored, remove {self.path}",
            tried=False,
        )

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            op="noting how far the log has come",
            why=f"{self.path}: {error.strerror}",
            hint="let the file be read and written by this user, and free some space",
            retryable=True,
        )

    def _unfit(self, why: str) -> StorageError:
        return StorageError(
            op="open",
            why=f"{self.path} is not what was written there: {why}",
            hint="remove it if nothing else is wrong with the log",
            tried=False,
        )
