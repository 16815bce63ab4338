"""Failures of the log that trying again does not mend."""

from typing import Final

from synrepl.errors import StorageError

__all__ = ["FROM_TABLE", "GivenElsewhere", "KeyReused", "InvalidValue", "LogLost"]

FROM_TABLE: Final = "its facts come from the homeserver's table"
"""Why nothing is appended to a stream whose facts are rows of a table."""


class KeyReused(StorageError):
    """An idempotency key came again, with another request than the one it was first used for."""

    def __init__(self, *, key: str, stream: str) -> None:
        super().__init__(
            op="append", why=f"idempotency key {key!r} was used for another request", stream=stream
        )
        self.key = key


class GivenElsewhere(StorageError):
    """The tokens of this stream are given elsewhere: nothing can be appended to it here.

    `why` says where its facts come from; `code` says the same to programs.
    """

    def __init__(self, *, stream: str, why: str = FROM_TABLE) -> None:
        is_table = why == FROM_TABLE
        super().__init__(
            op="append",
            why=why,
            hint="write them there, with ids from its sequence" if is_table else "",
            stream=stream,
            tried=False,
        )
        self.code = "table_backed" if is_table else "brought_elsewhere"


class InvalidValue(StorageError):
    """No database can hold a value that was asked for or given: the caller's mistake, not the log's."""


class LogLost(StorageError):
    """The database is not this process's log any more; nothing is written to it until a restart.

    Somebody else has written to it, or it was deleted or replaced.
    """
