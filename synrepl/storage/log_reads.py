"""Reads of the log from the reactor's thread: kept streams in the threads of the log, others from memory."""

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import succeed

from synrepl.base.history import AppendReceipt, LogRange
from synrepl.base.interfaces import IThread
from synrepl.storage.checked_reads import CheckedReads
from synrepl.storage.engine import SQLEngine
from synrepl.storage.ephemeral import EphemeralStore
from synrepl.storage.log_head import LogHead
from synrepl.storage.sql import TextForm
from synrepl.streams.facts import Fact
from synrepl.wire.filter import ALL, Filter

T = TypeVar("T")


class LogReads:
    """Reads facts, digests and receipts, up to the facts that subscribers have seen. A failed read raises
    `StorageError`, and makes the log unhealthy until it works again (`CheckedReads`).
    """

    def __init__(
        self,
        engine: SQLEngine,
        checked: CheckedReads,
        head: LogHead,
        ephemeral: EphemeralStore,
        *,
        writing: IThread,
    ) -> None:
        self._engine = engine
        self._checked = checked
        self._head = head
        self._ephemeral = ephemeral
        self._writing = writing

    def facts(
        self, *, after: int, upto: int, limit: int, filter: Filter = ALL, scanned: int | None = None
    ) -> Awaitable[tuple[list[Fact], int]]:
        """Read facts as `FactPages.facts` does."""
        read = self._engine.pages.facts
        return self._range(read, upto, after=after, limit=limit, filter=filter, scanned=scanned)

    def text(
        self, *, after: int, upto: int, limit: int, filter: Filter, form: TextForm, size: int, scanned: int
    ) -> Awaitable[tuple[bytes, int]]:
        """Read facts as text, as `FactPages.text` does."""
        options = {"limit": limit, "filter": filter, "form": form, "size": size, "scanned": scanned}
        return self._range(self._engine.pages.text, upto, after=after, **options)

    def extent(self, *, after: int, upto: int, limit: int, filter: Filter = ALL) -> Awaitable[LogRange]:
        """Count facts as `FactPages.extent` does."""
        return self._range(self._engine.pages.extent, upto, after=after, limit=limit, filter=filter)

    def _range(self, read: Callable[..., T], upto: int, **options: Any) -> Awaitable[T]:
        return self._checked.run(read.__name__, partial(read, upto=min(upto, self._head.serial), **options))

    def tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> Awaitable[tuple[list[Fact], bool]]:
        """Read facts of one stream by token, as `FactPages.tokens` does; ephemeral ones from memory."""
        ephemeral = self._ephemeral.streams.get(stream)
        if ephemeral is not None:
            return succeed(ephemeral.read_tokens(writer=writer, after=after, upto=upto, limit=limit))
        last = min(serial, self._head.serial)
        read = partial(self._engine.pages.tokens, stream=stream, writer=writer, after=after, upto=upto)
        return self._checked.run("read_tokens", partial(read, serial=last, limit=limit))

    def digest(self, serial: int) -> Awaitable[str | None]:
        """The digest at this serial; None if it is unknown."""
        return self._checked.run("digest_at", partial(self._engine.digest_at, serial))

    def receipts(
        self, after: int, upto: int, streams: Collection[str] | None = None
    ) -> Awaitable[list[AppendReceipt]]:
        """The receipts of appends to these streams whose first serial is in ``after < serial <= upto``."""
        read = partial(self._engine.receipts.between, after, upto, streams)
        return self._checked.run("receipts_between", read)

    def size(self, after: int) -> Awaitable[int]:
        """The approximate size in bytes of the facts beyond this serial, as `FactPages.size` finds it."""
        return self._checked.run("size", partial(self._engine.pages.size, after), thread=self._writing)
