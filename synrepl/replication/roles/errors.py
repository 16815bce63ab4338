"""Reasons why a daemon refuses writes, claims or promotion."""

from collections.abc import Sequence
from typing import Any

from synrepl.errors import ReplicationError, StorageError

__all__ = ["CannotPromote", "ClaimRefused", "Fenced", "HandingOver", "ReadOnlyHere"]


class CannotPromote(ReplicationError):
    """This daemon cannot become primary in its current state; `code` gives the reason for programs."""

    def __init__(self, code: str, why: str, *, retryable: bool = False, missing: Sequence[Any] = ()) -> None:
        super().__init__(why)
        self.code = code
        self.retryable = retryable
        self.missing = list(missing)


class ClaimRefused(ReplicationError):
    """A claim, or another message of a peer about roles, is refused; it changed nothing.

    `code` is ``bad_request``, ``busy``, ``not_whole``, ``other_history``, ``epoch_too_far``,
    ``not_verified``, ``digest_differs``, ``superseded`` (a later primary is known) or ``unknown_replica``.
    """

    def __init__(self, code: str, why: str, *, retryable: bool = False) -> None:
        super().__init__(why)
        self.code = code
        self.retryable = retryable


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
