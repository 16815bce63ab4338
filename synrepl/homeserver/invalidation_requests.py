"""Requests to an invalidator of a homeserver's caches, and its reports."""

from typing import Any, Protocol

import msgspec

from synrepl.errors import ReplicationError


class InvalidationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be dropped: one entry (`name` and its `key`), all of the caches `all`, all about `rooms`.

    `release` is that of the homeserver, such as ``1.163``; empty: what the metrics of its processes tell.
    `why` is for the record. With `verify` the answer waits until each process has received the rows; with
    `dry_run` nothing is written.
    """

    name: str = ""
    key: list[str] = []
    all: list[str] = []
    rooms: list[str] = []
    release: str = ""
    why: str = ""
    verify: bool = False
    dry_run: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is named."""
        return not (self.name or self.all or self.rooms)


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its release (empty: unknown), and whether it received the rows (None: not asked)."""

    name: str
    release: str = ""
    received: bool | None = None
    why: str = ""


class InvalidationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and who received it. Without `ids` nothing was written.

    `rows` have the name of a cache and keys (None: all). `drops` are the entries that processes drop, by
    release. `notes` are for people. `overtaken` are ids that some process may have ignored, as later ids of
    others were announced before.
    """

    rows: list[dict[str, Any]] = []
    drops: dict[str, list[dict[str, Any]]] = {}
    notes: list[str] = []
    ids: list[int] = []
    overtaken: list[int] = []
    processes: list[ProcessReport] = []

    @property
    def is_done(self) -> bool:
        """Whether all rows were announced in time, and received by those that were asked."""
        return not self.overtaken and all(one.received is not False for one in self.processes)


class NotInvalidated(ReplicationError):
    """The invalidation failed; the text says whether rows were written. `code` is one of `ERROR_CODES`."""

    def __init__(self, why: str, *, code: str = "not_invalidated") -> None:
        super().__init__(why)
        self.code = code


class IInvalidator(Protocol):
    """Invalidates the caches of one homeserver."""

    async def invalidate(self, request: InvalidationRequest) -> InvalidationReport:
        """Do it, or with `dry_run` tell what would be done.

        Raises `ConfigError` for a request of no use, `NotInvalidated` and other errors of this package if it
        failed.
        """
