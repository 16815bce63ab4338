"""Where one stands in the history of a log, and what a copy of it needs beside its facts."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from synrepl.streams.digest import EMPTY

__all__ = [
    "BEGINNING",
    "EMPTY",
    "LogRange",
    "Lease",
    "LogPosition",
    "AppendReceipt",
    "LogSnapshot",
    "EpochStart",
    "Appended",
]


class LogPosition(msgspec.Struct, frozen=True):
    """A place in a history: equal epoch, serial and digest mean that all before it is equal too."""

    epoch: int
    serial: int
    digest: str


BEGINNING: Final = LogPosition(epoch=1, serial=0, digest=EMPTY)
"""Before the first fact."""


class EpochStart(msgspec.Struct, frozen=True):
    """Where an epoch begins: after the fact with this serial and digest.

    `why` is ``promoted`` (another daemon took over), ``lost`` (facts were lost where they came from) or
    ``restored``. With a `stream`, facts of it from before this epoch and beyond `token` are void.
    """

    epoch: int
    serial: int
    digest: str
    at_ms: int
    why: str
    stream: str = ""
    token: int = 0


class Appended(msgspec.Struct, frozen=True):
    """The answer to an append: what it became. `first_serial` is None for ephemeral streams."""

    epoch: int
    first_serial: int | None
    tokens: list[int]


class AppendReceipt(msgspec.Struct, frozen=True):
    """What an append with an idempotency key was answered, kept so that repeating it is harmless.

    `request` is a checksum of what was asked, so that one key cannot stand for two things.
    """

    key: str
    request: str
    appended: Appended
    at_ms: int


class LogSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside the facts up to `place`, all of it as of that one moment.

    Of the facts up to `begin` only those are there that nothing has replaced (`IEngine.trim`); beyond it,
    all are. `positions` holds the highest token of each (stream, writer).
    """

    position: LogPosition
    trimmed_upto: LogPosition
    epoch_starts: Sequence[EpochStart]
    positions: Mapping[tuple[str, str], int]
    receipts: Sequence[AppendReceipt]


class LogRange(msgspec.Struct, frozen=True, kw_only=True):
    """What lies between two places of a log, as far as it is wanted.

    `serial` is where it was looked up to; `facts`, and the `bytes` of their rows, were found on the way.
    `tokens` has the highest token of each (stream, writer) among them, `at_ms` is when the last of them was
    committed (0 if there is none).
    """

    serial: int
    facts: int = 0
    bytes: int = 0
    tokens: Mapping[tuple[str, str], int] = {}
    at_ms: int = 0


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps the log from being trimmed for one reader: nothing beyond `serial` goes while it stands.

    `uuid` is the reader's own. A `registered` reader is a replica; others are anonymous. `seen_ms` is when
    it was last heard of, None if never; `address` is where it serves. A lease that ended, at `ended_ms`,
    holds nothing, and is kept so that people can see why (`reason`).
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
