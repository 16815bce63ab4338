"""Reasons why a daemon refuses writes, claims or promotion."""

from collections.abc import Sequence
from typing import Any

from synrepl.errors import ReplicationError, StorageError
from synrepl.wire.error_codes import ERROR_CODES

__all__ = ["CannotPromote", "ClaimRefused", "Fenced", "HandingOver", "ReadOnlyHere"]


def _is_retryable(code: str) -> bool:
    """Whether the same request can succeed later, as the code says."""
    kind = ERROR_CODES.get(code)
    return kind is not None and bool(kind.retryable)


class CannotPromote(ReplicationError):
    """This daemon cannot become primary in its current state; `code` gives the reason for programs."""

    def __init__(
        self, code: str, why: str, *, retryable: bool | None = None, missing: Sequence[Any] = ()
    ) -> None:
        super().__init__(why)
        self.code = code
        self.retryable = _is_retryable(code) if retryable is None else retryable
        self.missing = list(missing)


class ClaimRefused(ReplicationError):
    """A claim, or another message of a peer about roles, is refused; it changed nothing. `code` gives
    the reason for programs.
    """

    def __init__(self, code: str, why: str, *, retryable: bool | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.retryable = _is_retryable(code) if retryable is None else retryable


class ReadOnlyHere(StorageError):
    """This daemon refuses writes.

    `code` gives the reason for programs, `moved_to` the address to write to.
    """

    def __init__(
        self, code: str, why: str, *, stream: str, moved_to: str = "", retryable: bool = True
    ) -> None:
        super().__init__(op="append", why=why, stream=stream, retryable=retryable, tried=False)
        self.code = code
        self.moved_to = moved_to


class Fenced(ReadOnlyHere):
    """Another daemon is primary: this one refuses writes."""


class HandingOver(ReadOnlyHere):
    """Another daemon is about to become primary: this one refuses writes."""
