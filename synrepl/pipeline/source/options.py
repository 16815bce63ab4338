"""Options of the data source and the sink, named like those of Spark's Kafka source."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Final

from synrepl.errors import ConfigError
from synrepl.pipeline.source.offsets import EARLIEST, LATEST, OffsetRequest, parse_offset_request
from synrepl.pipeline.source.rows import COLUMNS, Layout

UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def _names(name: str, text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _integer(name: str, text: str, *, lowest: int = 1) -> int:
    if not text.strip().isdecimal() or int(text) < lowest:
        raise ConfigError(f"the option {name} must be a whole number of at least {lowest}, not {text[:40]!r}")
    return int(text)


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


Text = Annotated[str | None, lambda name, text: text]
NameSet = Annotated[frozenset[str] | None, lambda name, text: frozenset(_names(name, text)) or None]
Names = Annotated[tuple[str, ...], _names]
Integer = Annotated[int, _integer]
Limit = Annotated[int | None, _integer]
Flag = Annotated[bool, _flag]
Request = Annotated[OffsetRequest, parse_offset_request]
Timestamp = Annotated[
    OffsetRequest | None, lambda name, text: OffsetRequest(at_ms=_integer(name, text, lowest=0))
]

BEGINNING: Final = OffsetRequest(word=EARLIEST)
HEAD: Final = OffsetRequest(word=LATEST)


@dataclass(frozen=True)
class SourceOptions:
    """The options of a query: each field is the option of its name in camel case.

    `url` names a daemon, or several with the same log; `secret_file` has their secret, `ca_file` the CAs to
    trust for HTTPS; `insecure`: the secret may also go where others can read it. `streams` and `writers`
    filter facts (None: all); `columns` are the columns, in order. A micro-batch has at most
    `max_offsets_per_trigger` facts and about `max_bytes_per_trigger` of rows, but a fact is never split. A
    batch starts when `min_offsets_per_trigger`
    facts wait, or, with fewer, `max_trigger_delay` seconds after the last. A range is split among at least
    `min_partitions` tasks, of up to `facts_per_partition` serials each. With `compacted` the remaining facts
    of the trimmed part are read too. Under the name `reader` the daemon retains unread facts. Failed requests
    are retried for `retry_seconds`. A reader of one `stream` also has the columns of its `layout`, which is
    not an option.

    For the sink: `stream` and `writer` are the defaults for rows without these columns, `query` is the name
    of the query, and `batch_facts` the number of facts per request.
    """

    url: Names = ()
    secret_file: Text = None
    ca_file: Text = None
    insecure: Flag = False
    streams: NameSet = None
    writers: NameSet = None
    columns: Names = ()
    starting_timestamp: Timestamp = None
    starting_offsets: Request = BEGINNING
    ending_timestamp: Timestamp = None
    ending_offsets: Request = HEAD
    max_offsets_per_trigger: Limit = None
    min_offsets_per_trigger: Limit = None
    max_trigger_delay: Annotated[float, _seconds] = 900.0
    max_bytes_per_trigger: Limit = None
    fail_on_data_loss: Flag = True
    min_partitions: Integer = 1
    facts_per_partition: Integer = 100_000
    compacted: Flag = False
    reader: Text = None
    retry_seconds: Annotated[int, partial(_integer, lowest=0)] = 60
    stream: Text = None
    writer: Text = None
    query: Text = None
    batch_facts: Integer = 2_000
    layout: Layout | None = None


def connection_options(secret_file: str | None, ca_file: str | None, insecure: bool) -> dict[str, str]:
    """Return the options that name these files, and whether the secret may go where others can read it."""
    named = {"secretFile": secret_file, "caFile": ca_file, "insecure": "true" if insecure else None}
    return {name: path for name, path in named.items() if path is not None}


def read_options(
    given: Mapping[str, str], find_layout: Callable[[SourceOptions], Layout] | None = None
) -> SourceOptions:
    """Parse options, whose names are case-insensitive. Raises `ConfigError`.

    `find_layout` returns the layout of the option `stream`, for a reader.
    """
    # Unknown options are ignored: Spark passes its own, such as `path`, to every source.
    texts = {name.lower(): text for name, text in given.items()}
    values = {}
    for one in fields(SourceOptions):
        name = re.sub("_(.)", lambda found: found[1].upper(), one.name)
        if name.lower() in texts and one.name != "layout":
            (parse,) = one.type.__metadata__  # type: ignore[union-attr]  # all fields but this are Annotated
            values[one.name] = parse(name, texts[name.lower()])
    options = SourceOptions(**values)
    if not options.url:
        raise ConfigError("the data source synrepl needs the option url, such as http://127.0.0.1:9093")
    for number, url in enumerate(options.url):
        if url in options.url[:number]:
            raise ConfigError(f"the address {url} is given twice")
    known = COLUMNS
    if find_layout is not None and options.stream is not None:
        if options.streams not in (None, {options.stream}):
            raise ConfigError(
                "the options stream and streams exclude each other: stream reads one stream, with its columns"
            )
        layout = find_layout(options)
        options = replace(options, streams=frozenset({options.stream}), layout=layout)
        known += tuple(column.name for column in layout.columns)
    for column in options.columns:
        if column not in known:
            raise ConfigError(f"there is no column {column!r}; the columns are {', '.join(known)}")
    if len(set(options.columns)) < len(options.columns):
        raise ConfigError(f"a column is named twice in {', '.join(options.columns)}")
    return replace(options, columns=options.columns or known)
