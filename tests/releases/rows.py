"""Rows that classes of real releases made: what must become of them."""

import json
from typing import Any, Final

from synrepl.replication.serving.encoder import Encoder
from synrepl.replication.strategies import serving
from synrepl.streams.facts import Fact
from synrepl.streams.table import StreamTable
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import Rdata
from synrepl.wire.dialect import NEWEST, Dialect
from synrepl.wire.grammar import BOTH, SERVER
from tests.releases import at, facts

TABLE: Final = StreamTable.default()

RENAMED: Final = {("device_lists", "entity"): "user_id"}
"""Fields that an older release called otherwise; no name of a field is on the wire."""

DEFAULTS: Final = {
    ("backfill", "relates_to"): None,
    ("device_lists", "hosts_calculated"): False,
    ("device_lists", "is_signature"): False,
    ("events", "membership"): None,
    ("events", "outlier"): False,
    ("events", "rejected"): False,
    ("events", "relates_to"): None,
    ("receipts", "thread_id"): None,
}
"""What the newest shape has for a field that a release lacks (docs/reference/streams.md)."""


def fields_of(dialect: Dialect) -> dict[str, dict[str, list[str]]]:
    """The fields of a release as ``name:type``, by stream and tag."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, spans in facts("streams")["streams"].items():
        if one := at(spans, dialect):
            kinds = facts("streams")["events_tags"] if one["fields"] == "tagged" else {"": spans}
            found[name] = {tag: kind["fields"] for tag, form in kinds.items() if (kind := at(form, dialect))}
    return found


def names(stream: str, declared: list[str]) -> list[str]:
    """The names in ``name:type``, as our declarations have them."""
    found = [one.partition(":")[0] for one in declared]
    return [RENAMED.get((stream, name), name) for name in found]


def stored(line: str, dialect: Dialect) -> Fact:
    """What the log has of a line that a process of this release wrote."""
    rdata = codec_of(dialect, ours=BOTH & ~SERVER, theirs=SERVER).parse(line.encode())
    assert isinstance(rdata, Rdata)
    assert rdata.token is not None
    row = TABLE[rdata.stream].canonical(rdata.row, dialect)
    return Fact(1, 1, rdata.stream, rdata.instance, rdata.token - 1, rdata.token, b"[%b]" % row, 0, "")


def sent(fact: Fact, dialect: Dialect) -> str:
    """The line that a follower of this release gets."""
    codec = codec_of(dialect, ours=SERVER, theirs=BOTH & ~SERVER)
    encoder = Encoder(TABLE, codec, serving(dialect), withheld=lambda _, why: None)
    return encoder.lines([fact]).decode("ascii").removesuffix("\n")


def newest(stream: str, tag: str, line: str, dialect: Dialect) -> Any:
    """The row of this line in the newest shape, as readers over HTTP must get it."""
    row = json.loads(line[line.index("[") :])
    of_release = fields_of(dialect)[stream][tag]
    values = dict(zip(names(stream, of_release), row[1] if tag else row, strict=True))
    last = fields_of(NEWEST).get(stream, {}).get(tag, of_release)
    found = [values[name] if name in values else DEFAULTS[stream, name] for name in names(stream, last)]
    return [tag, found] if tag else found
