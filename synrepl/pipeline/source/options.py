"""Options of the data source and the sink, named like those of Spark's Kafka source."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from synrepl.errors import ConfigError
from synrepl.pipeline.source.offsets import EARLIEST, LATEST, OffsetRequest, parse_offset_request
from synrepl.pipeline.source.rows import COLUMNS

__all__ = ["SourceOptions", "read_options"]

FACTS_PER_PARTITION: Final = 100_000
RETRY_SECONDS: Final = 60
BATCH_FACTS: Final = 2_000
UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
BEGINNING: Final = OffsetRequest(word=EARLIEST)
HEAD: Final = OffsetRequest(word=LATEST)


@dataclass(frozen=True)
class SourceOptions:
    """The options of a query.

    `streams` and `writers` filter facts (None: all); `columns` are the columns, in order. A micro-batch has
    at most `max_offsets` facts and about `max_bytes` of rows, but a fact is never split; it starts when
    `min_offsets` facts are waiting, or after `max_delay_seconds`. A range of more than `facts_per_partition`
    facts is split among tasks; there are at least `min_partitions`. With `compacted` the remaining facts of
    the trimmed part are read too. Under the name `reader` the daemon retains unread facts. Failed requests
    are retried for `retry_seconds`.

    For the sink: `stream` and `writer` are the defaults for rows without these columns, `query` is the name
    of the query, and `batch_facts` the number of facts per request.
    """

    url: str
    secret_file: str | None = None
    streams: frozenset[str] | None = None
    writers: frozenset[str] | None = None
    columns: tuple[str, ...] = COLUMNS
    starting: OffsetRequest = BEGINNING
    ending: OffsetRequest = HEAD
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_seconds: float = 900.0
    max_bytes: int | None = None
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    facts_per_partition: int = FACTS_PER_PARTITION
    compacted: bool = False
    reader: str | None = None
    retry_seconds: int = RETRY_SECONDS
    stream: str | None = None
    writer: str | None = None
    query: str | None = None
    batch_facts: int = BATCH_FACTS


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse options, whose names are case-insensitive. Raises `ConfigError`."""
    # Spark passes its own options, such as `path`, to every source.
    texts = {name.lower(): text for name, text in given.items()}
    if "url" not in texts:
        raise ConfigError("the data source synrepl needs the option url, such as http://127.0.0.1:9093")
    values: dict[str, Any] = {}
    for name, (field, parse) in OPTIONS.items():
        text = texts.get(name.lower())
        if text is not None and field not in values:
            values[field] = parse(name, text)
    return SourceOptions(**values)


def _text(name: str, text: str) -> str:
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _name_set(name: str, text: str) -> frozenset[str] | None:
    return frozenset(_names(text)) or None


def _columns(name: str, text: str) -> tuple[str, ...]:
    columns = _names(text) or COLUMNS
    for column in columns:
        if column not in COLUMNS:
            raise ConfigError(f"there is no column {column!r}; the columns are {', '.join(COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"a column is named twice in {', '.join(columns)}")
    return columns


def _integer(name: str, text: str, *, lowest: int = 1) -> int:
    if not text.strip().isdecimal() or int(text) < lowest:
        raise ConfigError(f"the option {name} must be a whole number of at least {lowest}, not {text[:40]!r}")
    return int(text)


def _timestamp(name: str, text: str) -> OffsetRequest:
    return OffsetRequest(at_ms=_integer(name, text, lowest=0))


def _seconds(name: str, text: str) -> float:
    found = re.fullmatch(r"(\d{1,9}) ?(ms|s|m|h|d)", text.strip().lower())
    if found is None:
        raise ConfigError(
            f"the option {name} must be a duration such as 15m, 30s or 500ms, not {text[:40]!r}"
        )
    return int(found[1]) * UNIT_SECONDS[found[2]]


def _flag(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"the option {name} must be true or false, not {word[:40]!r}")
    return word == "true"


OPTIONS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "url": ("url", _text),
    "secretFile": ("secret_file", _text),
    "streams": ("streams", _name_set),
    "writers": ("writers", _name_set),
    "columns": ("columns", _columns),
    "startingTimestamp": ("starting", _timestamp),
    "startingOffsets": ("starting", parse_offset_request),
    "endingTimestamp": ("ending", _timestamp),
    "endingOffsets": ("ending", parse_offset_request),
    "maxOffsetsPerTrigger": ("max_offsets", _integer),
    "minOffsetsPerTrigger": ("min_offsets", _integer),
    "maxTriggerDelay": ("max_delay_seconds", _seconds),
    "maxBytesPerTrigger": ("max_bytes", _integer),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "minPartitions": ("min_partitions", _integer),
    "factsPerPartition": ("facts_per_partition", _integer),
    "compacted": ("compacted", _flag),
    "reader": ("reader", _text),
    "retrySeconds": ("retry_seconds", partial(_integer, lowest=0)),
    "stream": ("stream", _text),
    "writer": ("writer", _text),
    "query": ("query", _text),
    "batchFacts": ("batch_facts", _integer),
}
"""The field and the parser of each option. A timestamp overrides offsets, as in the Kafka source."""
