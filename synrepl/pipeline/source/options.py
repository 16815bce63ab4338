"""Options of the data source and the sink, named like those of Spark's Kafka source."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from synrepl.errors import ConfigError
from synrepl.pipeline.source.offsets import EARLIEST, LATEST, OffsetRequest, parse_offset_request
from synrepl.pipeline.source.rows import COLUMNS

__all__ = ["SourceOptions", "read_options"]

KNOWN: Final = (
    "url",
    "secretFile",
    "streams",
    "writers",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "minPartitions",
    "factsPerPartition",
    "compacted",
    "reader",
    "retrySeconds",
    "stream",
    "writer",
    "query",
    "batchFacts",
)

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
    are retry_late_workers for `retry_seconds`.

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
    by_name = {name.lower(): name for name in KNOWN}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in by_name:
            # Spark passes its own options, such as `path`, to every source.
            continue
        values[by_name[name.lower()]] = value
    if "url" not in values:
        raise ConfigError("the data source synrepl needs the option url, such as http://127.0.0.1:9093")
    columns = _names(values.get("columns")) or COLUMNS
    for column in columns:
        if column not in COLUMNS:
            raise ConfigError(f"there is no column {column!r}; the columns are {', '.join(COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"a column is named twice in {', '.join(columns)}")
    return SourceOptions(
        url=values["url"],
        secret_file=values.get("secretFile"),
        streams=_name_set(values.get("streams")),
        writers=_name_set(values.get("writers")),
        columns=columns,
        starting=_offset_request(values, "starting", EARLIEST),
        ending=_offset_request(values, "ending", LATEST),
        max_offsets=_integer(values, "maxOffsetsPerTrigger", None),
        min_offsets=_integer(values, "minOffsetsPerTrigger", None),
        max_delay_seconds=_seconds(values, "maxTriggerDelay", "15m"),
        max_bytes=_integer(values, "maxBytesPerTrigger", None),
        fail_on_data_loss=_flag(values, "failOnDataLoss", True),
        min_partitions=_integer(values, "minPartitions", 1) or 1,
        facts_per_partition=_integer(values, "factsPerPartition", FACTS_PER_PARTITION) or FACTS_PER_PARTITION,
        compacted=_flag(values, "compacted", False),
        reader=values.get("reader"),
        retry_seconds=_integer(values, "retrySeconds", RETRY_SECONDS, lowest=0) or 0,
        stream=values.get("stream"),
        writer=values.get("writer"),
        query=values.get("query"),
        batch_facts=_integer(values, "batchFacts", BATCH_FACTS) or BATCH_FACTS,
    )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _name_set(text: str | None) -> frozenset[str] | None:
    return frozenset(_names(text)) or None


def _integer(values: Mapping[str, str], name: str, default: int | None, *, lowest: int = 1) -> int | None:
    text = values.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < lowest:
        raise ConfigError(f"the option {name} must be a whole number of at least {lowest}, not {text[:40]!r}")
    return int(text)


def _offset_request(values: Mapping[str, str], which: str, default: str) -> OffsetRequest:
    """Parse a start or end position. A timestamp overrides offsets, as in the Kafka source."""
    at_ms = _integer(values, f"{which}Timestamp", None, lowest=0)
    if at_ms is not None:
        return OffsetRequest(at_ms=at_ms)
    return parse_offset_request(f"{which}Offsets", values.get(f"{which}Offsets", default))


def _seconds(values: Mapping[str, str], name: str, default: str) -> float:
    text = values.get(name, default)
    found = re.fullmatch(r"(\d{1,9}) ?(ms|s|m|h|d)", text.strip().lower())
    if found is None:
        raise ConfigError(
            f"the option {name} must be a duration such as 15m, 30s or 500ms, not {text[:40]!r}"
        )
    return int(found[1]) * UNIT_SECONDS[found[2]]


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} must be true or false, not {text[:40]!r}")
    return text == "true"
