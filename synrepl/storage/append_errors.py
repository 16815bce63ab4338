"""Errors of appends and of the log that have a type of their own."""

import errno
from typing import Final

from synrepl.base.history import AppendKey
from synrepl.errors import StorageError
from synrepl.storage.private_files import HINTS

FROM_TABLE: Final = "its facts come from the homeserver's table"
"""Why the log takes no appends to a stream whose facts are rows of a table."""


class KeyReused(StorageError):
    """The idempotency key was used for a different request before."""

    def __init__(self, key: AppendKey) -> None:
        why = f"idempotency key {key.text!r} was used for another request to this stream"
        super().__init__(op="append", why=why, hint="use a new key for each request", stream=key.stream)
        self.key = key.text


class GivenElsewhere(StorageError):
    """The log takes no appends of this writer to this stream: its facts come from elsewhere.

    `why` names their source, or the permitted writers. `code` is ``table_backed`` or ``brought_elsewhere``.
    """

    def __init__(self, *, stream: str, why: str = FROM_TABLE) -> None:
        is_table = why == FROM_TABLE
        super().__init__(
            op="append",
            why=why,
            hint="write to this table, with ids from its sequence" if is_table else "",
            stream=stream,
            tried=False,
        )
        self.code = "table_backed" if is_table else "brought_elsewhere"


class ReadOnlyHere(StorageError):
    """This daemon refuses writes.

    `code` gives the reason for programs, `moved_to` the primary's address, if that is another daemon.
    """

    def __init__(
        self, code: str, why: str, *, stream: str, moved_to: str = "", retryable: bool = True
    ) -> None:
        super().__init__(op="append", why=why, stream=stream, retryable=retryable, tried=False)
        self.code = code
        self.moved_to = moved_to


class InvalidValue(StorageError):
    """The request has values that the database cannot take, or too many of them: the caller's error."""


class LogNotOurs(StorageError):
    """The database no longer belongs to this process, which writes nothing to it until a restart.

    Another process has opened or written to it, or it was deleted or replaced.
    """


def append_error(stream: str, why: str, *, hint: str = "", retryable: bool = False) -> StorageError:
    """Make the error of a refused append."""
    return StorageError(op="append", why=why, hint=hint, stream=stream, retryable=retryable)


def as_storage_error(error: Exception, op: str = "append") -> StorageError:
    """The error itself, or one that says of an unexpected error what it was."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, MemoryError):
        unexpected = StorageError(op=op, why="out of memory", hint=HINTS[errno.ENOMEM], retryable=True)
    else:
        unexpected = StorageError(op=op, why=f"unexpected {type(error).__name__}: {error}")
    unexpected.__cause__ = error
    return unexpected
