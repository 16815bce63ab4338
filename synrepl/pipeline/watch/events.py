"""Events: a closed list of JSON lines, each an object whose first key is `type`."""

from collections.abc import Sequence
from typing import Final

import msgspec


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """An event. `at_ms` is the commit time of the fact that the event is about, otherwise the current time.

    In some events, `serial` is that of the fact by which the event was detected.
    """

    at_ms: int


class Epoch(WatchEvent, frozen=True, kw_only=True):
    """A new epoch began, by a failover, or a loss or restore of facts. Detected by its first fact."""

    epoch: int
    before_epoch: int
    serial: int


class WriterEvent(WatchEvent, frozen=True, kw_only=True):
    """An event of one writer of a stream."""

    stream: str
    writer: str


class PositionEvent(WriterEvent, frozen=True, kw_only=True):
    """A writer continues at another position than its last (`after_token`)."""

    epoch: int
    after_token: int
    prev_token: int
    token: int
    serial: int


class Restart(PositionEvent, frozen=True, kw_only=True):
    """A writer continues at another position in a new epoch."""


class Again(PositionEvent, frozen=True, kw_only=True):
    """A writer repeats tokens in the same epoch: the writer is broken."""


class Gap(WriterEvent, frozen=True, kw_only=True):
    """Facts with ``after_token < token <= upto_token`` are missing; the fact of `upto_token` must exist."""

    after_token: int
    upto_token: int
    epoch: int
    serial: int


class Lost(WriterEvent, frozen=True, kw_only=True):
    """The log says that facts with ``after_token < token <= upto_token`` are lost: it could not get them."""

    after_token: int
    upto_token: int
    epoch: int
    serial: int


class Repaired(WriterEvent, frozen=True, kw_only=True):
    """A reported gap is filled by late `facts`, the last of them with this serial.

    All facts known to be missing were received. Facts before a late one may still be missing.
    """

    after_token: int
    upto_token: int
    facts: int
    open_seconds: float
    serial: int


class Active(WriterEvent, frozen=True, kw_only=True):
    """A stalled writer writes again."""

    token: int
    silent_seconds: float
    serial: int


class Stall(WriterEvent, frozen=True, kw_only=True):
    """A writer that wrote every `usual_seconds` is silent; `token` is that of its last fact."""

    token: int
    silent_seconds: float
    usual_seconds: float


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """The number of invalidations of a cache, or of its entry with a key."""

    name: str
    key: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    count: int


class Hot(WatchEvent, frozen=True, kw_only=True):
    """The invalidations by the `rows` of ``caches`` of one minute, as workers apply them.

    `invalidations` counts entries; `names` and `keys` are the most frequent. Invalidations of whole caches
    are separate (`whole`, `whole_names`). Rows are `misshapen` if their keys do not fit their alias: they
    invalidate all caches of the alias. Rows or keys that cannot be decoded are `unreadable`. Of very many
    entries the rarest are dropped: counts in `keys` may be too low by up to `short_by`.
    """

    minute: str
    invalidations: int
    rows: int
    whole: int
    misshapen: int
    unreadable: int
    names: Sequence[Count]
    keys: Sequence[Count]
    whole_names: Sequence[Count]
    short_by: int


KINDS: Final[tuple[type[WatchEvent], ...]] = (Epoch, Restart, Gap, Lost, Repaired, Again, Active, Stall, Hot)
"""The kinds of events, in the order in which those about one fact are written."""

NO_FACT: Final = 2**63 - 1

encode: Final = msgspec.json.Encoder().encode
"""Encode an event as JSON, without a newline."""


def order(line: WatchEvent) -> tuple[int, int, bytes]:
    """Return the sort key of an event in a micro-batch: events without a fact come last."""
    return getattr(line, "serial", NO_FACT), KINDS.index(type(line)), encode(line)
