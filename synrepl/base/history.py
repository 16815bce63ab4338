"""What a log has besides facts and notes: positions, epoch starts, receipts, snapshots, ranges and leases."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from synrepl.streams.digest import EMPTY
from synrepl.streams.writer import Writer
from synrepl.wire.position import LogPosition

BEGINNING: Final = LogPosition(epoch=1, serial=0, digest=EMPTY)
"""The position before the first fact."""


class EpochStart(msgspec.Struct, frozen=True):
    """The start of an epoch, after the fact with this serial and digest.

    `why` is ``promoted`` (a daemon became primary), ``lost`` (a source lost facts) or ``restored``. With a
    `stream`, its facts from before this epoch and beyond `token` are discarded.
    """

    epoch: int
    serial: int
    digest: str
    at_ms: int
    why: str
    stream: str = ""
    token: int = 0

    def seen_by(self, streams: Collection[str] | None) -> "EpochStart":
        """Return the start as told to who may see these streams (None: all): another one is not named."""
        if streams is None or not self.stream or self.stream in streams:
            return self
        return msgspec.structs.replace(self, stream="", token=0)

    @property
    def position(self) -> LogPosition:
        """The first position of the epoch."""
        return LogPosition(self.epoch, self.serial, self.digest)


class Appended(msgspec.Struct, frozen=True):
    """The result of an append. `first_serial` is None for ephemeral streams."""

    epoch: int
    first_serial: int | None
    tokens: list[int]


class AppendKey(msgspec.Struct, frozen=True):
    """The idempotency key of an append: the client's `text`, which belongs to a stream and an owner.

    `owner` is the name of the key that the client has proved (empty: the shared secret, or none). `part` is
    the number of the append in a batch, from 1 on, and 0 outside of a batch.
    """

    stream: str
    text: str
    owner: str = ""
    part: int = 0


class AppendReceipt(msgspec.Struct, frozen=True):
    """The stored result of an append with an idempotency key, which makes a retry safe.

    `request` is a checksum of the request, so that one key cannot stand for two requests.
    """

    key: AppendKey
    request: str
    appended: Appended
    at_ms: int


class LogSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot of a log contains besides facts, as of `position`.

    The log is trimmed up to `trimmed_upto` (`SQLEngine.trim`). `positions` holds the highest token of each
    (stream, writer).
    """

    position: LogPosition
    trimmed_upto: LogPosition
    epoch_starts: Sequence[EpochStart]
    positions: Mapping[Writer, int]
    receipts: Sequence[AppendReceipt]

    def seen_by(self, streams: Collection[str] | None) -> "LogSnapshot":
        """Return the part for who may see these streams (None: all): others are not named."""
        if streams is None:
            return self
        return LogSnapshot(
            position=self.position,
            trimmed_upto=self.trimmed_upto,
            epoch_starts=[start.seen_by(streams) for start in self.epoch_starts],
            positions={writer: at for writer, at in self.positions.items() if writer.stream in streams},
            receipts=[receipt for receipt in self.receipts if receipt.key.stream in streams],
        )


class LogRange(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the facts that pass a filter, in a range of serials.

    `serial` is the last serial examined. `facts` and `bytes` (of their rows) count the facts found up to it.
    `tokens` has the highest token of each (stream, writer) among them; `at_ms` is the latest of their commit
    times, 0 without facts.
    """

    serial: int
    facts: int = 0
    bytes: int = 0
    tokens: Mapping[Writer, int] = {}
    at_ms: int = 0


READER_PREFIX: Final = "reader:"
"""The uuid of a named reader of the changelog is this and its name."""

BACKUP_PREFIX: Final = "backup:"
"""The uuid of a backup begins with this: it reads as a replica does, and can be none."""

RESTORED_PREFIX: Final = "00000000-"
"""The uuid of a log that was restored from a backup begins with this, and so orders below others: a replica
that was promoted meanwhile is primary in an epoch of the same number, and stays."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Protects the log from being trimmed beyond `serial` on behalf of one reader.

    `uuid` is the reader's. A `registered` reader is a replica; others are anonymous. `seen_ms` is the time of
    the reader's last message, None if there was none since `made_ms`; `address` is where the reader serves
    others. A lease that ended at `ended_ms`, for the `reason`, protects nothing. `key` is the name of the key
    that the reader proved: empty for the shared secret, None if it proved none or has not connected yet.
    """

    uuid: str
    name: str
    registered: bool
    serial: int
    made_ms: int
    seen_ms: int | None = None
    address: str = ""
    ended_ms: int | None = None
    reason: str = ""
    key: str | None = None
