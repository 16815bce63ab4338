"""The interface of a room that brings facts into the log of a primary, such as those of tables."""

from collections.abc import Collection
from typing import Protocol

from synrepl.replication.follower.updates import ICatchUp


class IFactSource(ICatchUp, Protocol):
    """Brings facts that have tokens already, while it is open: as long as the daemon is the primary.

    A posted fact would get a token of the log's own, so the log refuses posts to `streams`: a room with such
    a source names them before the log is opened (`Room.assigned_streams`).
    """

    @property
    def streams(self) -> Collection[str]:
        """The streams whose live facts it brings, of all writers or of some."""

    @property
    def whole_streams(self) -> Collection[str]:
        """Those of `streams` that it brings of all writers: Redis and followed servers do not bring them.

        It need not bring the facts of several writers in the order of their tokens (`Log.table_streams`).
        """

    @property
    def missed_streams(self) -> Collection[str]:
        """The streams that `fetch` reads missing facts of. Live facts of these come from another source."""

    def open(self) -> None:
        """Begin to bring facts. Raises `ConfigError`."""

    async def close(self) -> None:
        """Bring no more. It may be opened again."""
