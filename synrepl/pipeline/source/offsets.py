"""Offsets of a reader, as JSON that is readable in a checkpoint.

::

    {"version": 1, "epoch": 1, "serial": 4711, "digest": "5a...", "history": "6f...",
     "clock": {"events": {"master": 53}}, "committed_at_ms": 1795238819609}

Everything up to the serial was read. Epoch, digest and history prove that the offset belongs to the log of
the daemon. The clock is the same position in tokens, for operators and other tools.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, TypeGuard

from synrepl.errors import ConfigError

VERSION: Final = 1
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Clock = Mapping[str, Mapping[str, int]]


class BadOffset(ConfigError):
    """An invalid offset."""


@dataclass(frozen=True)
class Offset:
    """A position: everything up to `serial` was read; `clock` has the highest token read of each writer.

    Facts of a writer in `skip` are not read, up to the serial given there.
    """

    serial: int
    epoch: int = 1
    digest: str | None = None
    history: str = ""
    clock: Clock = field(default_factory=dict)
    committed_at_ms: int = 0
    skip: Clock = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for Spark's checkpoint."""
        clock = {stream: dict(sorted(of.items())) for stream, of in sorted(self.clock.items())}
        found = {"version": VERSION, **asdict(self), "clock": clock}
        return found if self.skip else {name: value for name, value in found.items() if name != "skip"}

    @classmethod
    def from_json(cls, value: Any) -> "Offset":
        """Parse the JSON object of a checkpoint. Raises `BadOffset`."""
        if not isinstance(value, dict):
            raise BadOffset(f"an offset must be an object, not {json.dumps(value)[:80]}")
        version = value.get("version")
        if version != VERSION:
            raise BadOffset(f"the offset has version {version!r}; this release supports version {VERSION}")
        names = {one.name for one in fields(cls)} & value.keys()
        found = cls(**{"serial": None} | {name: value[name] for name in names})
        if not _is_integer(found.serial, 0) or not _is_integer(found.epoch, 1):
            raise BadOffset(
                f"an offset needs a serial from 0 and an epoch from 1, not {found.serial!r}, {found.epoch!r}"
            )
        if not isinstance(found.digest, str | None) or not isinstance(found.history, str):
            raise BadOffset("digest and history of an offset must be strings")
        at_ms = found.committed_at_ms if _is_integer(found.committed_at_ms, 0) else 0
        return replace(found, clock=_clock(found.clock), committed_at_ms=at_ms, skip=_clock(found.skip))

    def advance(self, found: Mapping[str, Any]) -> "Offset":
        """Return the offset after the range that ``GET /v1/extent`` found. Tokens never go back."""
        clock = {stream: dict(of) for stream, of in self.clock.items()}
        for stream, writers in found["clock"].items():
            known = clock.setdefault(stream, {})
            for writer, token in writers.items():
                known[writer] = max(token, known.get(writer, token))
        skip = {
            stream: left
            for stream, writers in self.skip.items()
            if (left := {writer: upto for writer, upto in writers.items() if upto > found["serial"]})
        }
        return replace(
            self,
            serial=found["serial"],
            epoch=max(self.epoch, found["epoch"]),
            digest=found["digest"],
            history=found["history"],
            clock=clock,
            committed_at_ms=max(self.committed_at_ms, found["committed_at_ms"]),
            skip=skip,
        )


@dataclass(frozen=True)
class OffsetRequest:
    """A requested start or end: one of the fields is set. `at_ms` is in Unix milliseconds."""

    word: str = ""
    offset: Offset | None = None
    clock: Clock | None = None
    at_ms: int | None = None


def parse_offset_request(name: str, text: str) -> OffsetRequest:
    """Parse `earliest`, `latest`, a serial, an offset, or tokens. Raises `BadOffset`.

    Tokens are ``{stream: {writer: token}}``, with -2 for the earliest and -1 for the latest, as in the Kafka
    source.
    """
    if text.strip().lower() in (EARLIEST, LATEST):
        return OffsetRequest(word=text.strip().lower())
    try:
        value = json.loads(text)
    except ValueError:
        raise BadOffset(f"{name} must be earliest, latest, a serial, or JSON, not {text[:80]!r}") from None
    if _is_integer(value, 0):
        return OffsetRequest(offset=Offset(serial=value))
    if isinstance(value, dict) and "version" in value:
        return OffsetRequest(offset=Offset.from_json(value))
    return OffsetRequest(clock=_clock(value, lowest=-2))


def _clock(value: Any, *, lowest: int = -(2**63)) -> dict[str, dict[str, int]]:
    if not isinstance(value, dict) or not all(isinstance(of, dict) for of in value.values()):
        raise BadOffset(f"positions must be {{stream: {{writer: token}}}}, not {json.dumps(value)[:80]}")
    for stream, writers in value.items():
        for writer, token in writers.items():
            if not _is_integer(token, lowest):
                raise BadOffset(
                    f"the token of {writer} in {stream} must be a whole number from {lowest}, not {token!r}"
                )
    return {stream: dict(writers) for stream, writers in value.items() if writers}


def _is_integer(value: Any, lowest: int) -> TypeGuard[int]:
    # bool is a subclass of int, but true is not a token.
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value < 2**63
