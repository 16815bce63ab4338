"""What can be told: a closed list of lines, each a JSON object whose `type` comes first."""

from collections.abc import Sequence
from typing import Final

import msgspec

__all__ = [
    "KINDS",
    "Active",
    "Again",
    "Count",
    "Elsewhere",
    "Gap",
    "Hot",
    "KeyCount",
    "WatchEvent",
    "Repaired",
    "Restart",
    "Stall",
    "Epoch",
    "encode",
    "order",
]


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """`at_ms` is when the daemon stored the fact that a line is about; without one it is now.

    `serial` is that of the fact by which it was noticed.
    """

    at_ms: int


class Epoch(WatchEvent, frozen=True, kw_only=True):
    """An epoch began: another daemon took over, or facts were lost or restored. Its first fact is told."""

    epoch: int
    before_epoch: int
    serial: int


class Elsewhere(WatchEvent, frozen=True, kw_only=True):
    """A writer goes on elsewhere than where it was seen to be (`after_token`)."""

    stream: str
    writer: str
    epoch: int
    after_token: int
    prev_token: int
    token: int
    serial: int


class Restart(Elsewhere, frozen=True, kw_only=True):
    """It does so in a new epoch."""


class Gap(WatchEvent, frozen=True, kw_only=True):
    """Facts with ``after_token < token <= upto_token`` did not come; the one of `upto_token` is certain."""

    stream: str
    writer: str
    after_token: int
    upto_token: int
    epoch: int
    serial: int


class Repaired(WatchEvent, frozen=True, kw_only=True):
    """A gap that was told is none any more: so many `facts` came late, the last with this serial.

    Whatever is known to have been missing is there. Facts that came late claim nothing of those before them.
    """

    stream: str
    writer: str
    after_token: int
    upto_token: int
    facts: int
    open_seconds: float
    serial: int


class Again(Elsewhere, frozen=True, kw_only=True):
    """It does so in the same epoch, at tokens that it had passed: it is broken."""


class Active(WatchEvent, frozen=True, kw_only=True):
    """A writer that was told to be silent speaks again."""

    stream: str
    writer: str
    token: int
    silent_seconds: float
    serial: int


class Stall(WatchEvent, frozen=True, kw_only=True):
    """A writer that was active, every `usual_seconds`, says nothing any more; `token` is its last."""

    stream: str
    writer: str
    token: int
    silent_seconds: float
    usual_seconds: float


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How often something of this cache was dropped."""

    name: str
    count: int


class KeyCount(msgspec.Struct, frozen=True, kw_only=True):
    """How often this entry was dropped."""

    name: str
    key: msgspec.Raw
    count: int


class Hot(WatchEvent, frozen=True, kw_only=True):
    """What the `rows` of ``caches`` of one minute dropped, as workers take them.

    `invalidations` counts entries, most of them first in `names` and `keys`; drops of whole caches are apart
    (`whole`, `whole_names`). Rows are `misshapen` if their keys are not those of their alias, and drop all
    that it reaches; rows or keys that nobody can read are `unreadable`. Of very many different entries the
    rarest are forgotten: counts in `keys` may be too low, by `short_by` at most.
    """

    minute: str
    invalidations: int
    rows: int
    whole: int
    misshapen: int
    unreadable: int
    names: Sequence[Count]
    keys: Sequence[KeyCount]
    whole_names: Sequence[Count]
    short_by: int


KINDS: Final[tuple[type[WatchEvent], ...]] = (
    Epoch,
    Restart,
    Gap,
    Repaired,
    Again,
    Active,
    Stall,
    Hot,
)
"""In this order where they are about the same fact."""

NO_FACT: Final = 2**63 - 1

_encode: Final = msgspec.json.Encoder().encode


def encode(line: WatchEvent) -> bytes:
    """As it is written, without its end."""
    return _encode(line)


def order(line: WatchEvent) -> tuple[int, int]:
    """Where it comes among the lines of a micro-batch: what is about no fact comes last."""
    return getattr(line, "serial", NO_FACT), KINDS.index(type(line))
