"""The state file: a small file next to an SQLite log, which records how far the log has come.

A database that is an older copy, or has lost its ``-wal``, is a valid database: only something outside it can
tell that facts are missing. The state file may be behind the log, so it never rejects a log as too new.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from synrepl.errors import StorageError
from synrepl.storage.private_files import map_path_errors, refuse_link, replace_private

VERSION: Final = 1


class Summary(msgspec.Struct, frozen=True):
    """The identity of a log and how far it has come. An empty `history` means that there is no log yet."""

    history: str = ""
    uuid: str = ""
    server_name: str = ""
    boots: int = 0
    epoch: int = 0
    serial: int = 0
    digest: str = ""

    def describe(self) -> str:
        """Describe the log in a message."""
        if not self.history:
            return "nothing"
        return f"serial {self.serial} in epoch {self.epoch} after {self.boots} starts"

    def follows(self, recorded: "Summary") -> bool:
        """Whether this log may be the recorded one, as it was then or later."""
        return (self.history, self.uuid) == (recorded.history, recorded.uuid) and all(
            now >= before
            for now, before in (
                (self.boots, recorded.boots),
                (self.epoch, recorded.epoch),
                (self.serial, recorded.serial),
            )
        )


class DatabaseState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of the file. `adopting` is a copy that replaces the log, or has just replaced it."""

    version: int
    log: Summary
    adopting: Summary | None = None


class StateFile:
    """The state file at `path`, replaced as a whole on each write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: DatabaseState | None = None

    def read(self) -> list[Summary]:
        """The logs of which one must be present; empty if nothing is recorded. Raises `StorageError`."""
        refuse_link(self.path)
        with self._map_errors("read the state file"):
            try:
                data = self.path.read_bytes()
            except FileNotFoundError:
                return []
        try:
            state = msgspec.json.decode(data, type=DatabaseState)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._invalid(str(error)) from error
        if state.version != VERSION:
            raise self._invalid(f"its version is {state.version}, this release knows only {VERSION}")
        return [state.log] if state.adopting is None else [state.log, state.adopting]

    def write(self, log: Summary, adopting: Summary | None = None) -> None:
        """Write the state durably, if it has changed. Raises `StorageError`."""
        state = DatabaseState(VERSION, log, adopting)
        if state == self._written:
            return
        # The contents are unknown while the file is being replaced.
        self._written = None
        with self._map_errors("write the state file"):
            replace_private(self.path, msgspec.json.encode(state) + b"\n")
        self._written = state

    def refusal(self, found: Summary, recorded: Summary, database: str) -> StorageError:
        """The error for a database that does not match the record."""
        if found.follows(recorded):
            less = ", with another digest at that serial: some facts up to it differ"
        elif found.history and found.history != recorded.history:
            of = f" of {recorded.server_name}" if recorded.server_name else ""
            less = f" of history {recorded.history}{of}, which is another log"
        else:
            other = found.history and found.uuid != recorded.uuid
            less = f" in the copy {recorded.uuid}; this is the copy {found.uuid}" if other else ""
        return StorageError(
            op="open",
            why=f"{database} holds {found.describe()}, but {self.path} says that the log had reached"
            f" {recorded.describe()}{less}",
            hint=f"restore {database} and {database}-wal as they were; if you replaced the log on purpose,"
            f" remove {self.path}",
            tried=False,
        )

    def _map_errors(self, op: str) -> AbstractContextManager[None]:
        return map_path_errors(op, self.path, "make the file readable and writable for this user")

    def _invalid(self, why: str) -> StorageError:
        return StorageError(
            op="open",
            why=f"{self.path} is not a valid state file: {why}",
            hint="delete it if nothing else is wrong with the log",
            tried=False,
        )
