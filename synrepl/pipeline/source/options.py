"""The options of the source and of the writer, under the names that Kafka's source made usual."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from synrepl.errors import ConfigError
from synrepl.pipeline.source.offsets import EARLIEST, LATEST, OffsetRequest, read_wish
from synrepl.pipeline.source.schema import COLUMNS

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
    """What a query says of what it reads, or where it writes.

    `streams` and `writers` choose (None: all), and `columns` says which columns there are, in this order.
    `max_offsets` facts at most make a micro-batch, and about `max_bytes` of their rows, but no fact is split;
    it waits until there are `min_offsets`, or for `max_delay_seconds`. Ranges of more than
    `facts_per_partition` are shared by several tasks, at least `min_partitions` in any case. With
    `compacted`, what a trimmed log has left of its beginning is read as well. Under the name `reader` the
    daemon keeps what is not read yet. What the daemon does not answer is asked again for `retry_seconds`.
    For the writer: `stream` and `writer` of facts that do not say them, the name of the `query`, and how many
    facts go together.
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
    """What these options say; names are in any case. Raises `ConfigError` at the first that is wrong."""
    by_name = {name.lower(): name for name in KNOWN}
    said: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in by_name:
            # Spark has options of its own that reach every source, such as `path`.
            continue
        said[by_name[name.lower()]] = value
    if "url" not in said:
        raise ConfigError("the source synrepl needs the option url, such as http://127.0.0.1:9093")
    columns = _names(said.get("columns")) or COLUMNS
    for column in columns:
        if column not in COLUMNS:
            raise ConfigError(f"there is no column {column!r}; there are {', '.join(COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"a column is named twice in {', '.join(columns)}")
    return SourceOptions(
        url=said["url"],
        secret_file=said.get("secretFile"),
        streams=_chosen(said.get("streams")),
        writers=_chosen(said.get("writers")),
        columns=columns,
        starting=_wish(said, "starting", EARLIEST),
        ending=_wish(said, "ending", LATEST),
        max_offsets=_whole(said, "maxOffsetsPerTrigger", None),
        min_offsets=_whole(said, "minOffsetsPerTrigger", None),
        max_delay_seconds=_seconds(said, "maxTriggerDelay", "15m"),
        max_bytes=_whole(said, "maxBytesPerTrigger", None),
        fail_on_data_loss=_flag(said, "failOnDataLoss", True),
        min_partitions=_whole(said, "minPartitions", 1) or 1,
        facts_per_partition=_whole(said, "factsPerPartition", FACTS_PER_PARTITION) or FACTS_PER_PARTITION,
        compacted=_flag(said, "compacted", False),
        reader=said.get("reader"),
        retry_seconds=_whole(said, "retrySeconds", RETRY_SECONDS, lowest=0) or 0,
        stream=said.get("stream"),
        writer=said.get("writer"),
        query=said.get("query"),
        batch_facts=_whole(said, "batchFacts", BATCH_FACTS) or BATCH_FACTS,
    )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _chosen(text: str | None) -> frozenset[str] | None:
    return frozenset(_names(text)) or None


def _whole(said: Mapping[str, str], name: str, default: int | None, *, lowest: int = 1) -> int | None:
    text = said.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < lowest:
        raise ConfigError(f"the option {name} is a whole number from {lowest} on, not {text[:40]!r}")
    return int(text)


def _wish(said: Mapping[str, str], which: str, default: str) -> OffsetRequest:
    """Where to begin, or end. A moment goes before offsets, as with Kafka's source."""
    at_ms = _whole(said, f"{which}Timestamp", None, lowest=0)
    if at_ms is not None:
        return OffsetRequest(at_ms=at_ms)
    return read_wish(f"{which}Offsets", said.get(f"{which}Offsets", default))


def _seconds(said: Mapping[str, str], name: str, default: str) -> float:
    text = said.get(name, default)
    found = re.fullmatch(r"(\d{1,9}) ?(ms|s|m|h|d)", text.strip().lower())
    if found is None:
        raise ConfigError(f"the option {name} is a time such as 15m, 30s or 500ms, not {text[:40]!r}")
    return int(found[1]) * UNIT_SECONDS[found[2]]


def _flag(said: Mapping[str, str], name: str, default: bool) -> bool:
    text = said.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} is true or false, not {text[:40]!r}")
    return text == "true"
