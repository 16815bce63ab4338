"""Every minor release from 1.0 to the newest has the streams, fields and order that its tag has."""

import pytest

from synrepl.streams.catalog import ALL
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import CURRENT, NEWEST, SYNAPSE, Dialect
from tests.releases import MINORS, at, facts

TABLE = StreamTable.default()

RENAMED = {("device_lists", "entity"): "user_id"}
"""Fields that an older release called otherwise; no name of a field is on the wire."""


def fields_of(stream: str, declared: list[str]) -> tuple[str, ...]:
    """The names of ``name:type`` as our declarations have them."""
    names = [one.partition(":")[0] for one in declared]
    return tuple(RENAMED.get((stream, name), name) for name in names)


@pytest.mark.parametrize("dialect", MINORS, ids=str)
def test_a_release_has_its_streams_with_their_fields(dialect: Dialect) -> None:
    """A process disconnects at a stream that it does not know, and fails on a row with another shape."""
    found, expected = {}, {}
    for stream in TABLE:
        if dialect.release in stream.span:
            for tag in stream.tags or ("",):
                if shape := stream.shape(dialect, tag):
                    found[stream.name, tag] = shape
    for name, spans in facts("streams")["streams"].items():
        of_release = at(spans, dialect)
        if of_release is None:
            continue
        kinds = {"": spans} if of_release["fields"] != "tagged" else facts("streams")["events_tags"]
        for tag, kind in kinds.items():
            if shape := at(kind, dialect):
                expected[name, tag] = fields_of(name, shape["fields"])

    assert expected == found


@pytest.mark.parametrize("dialect", MINORS, ids=str)
def test_positions_are_announced_in_the_order_of_the_release(dialect: Dialect) -> None:
    """The order of declaration is that of every release."""
    order = list[str]()
    for since, _, change in facts("streams")["order"]:
        if Dialect.parse(since) > dialect:
            break
        if isinstance(change, list):
            order = change
        else:
            order = [one for one in order if one not in change["removed"]] + change["added"]
    newest = facts("streams")["order_newest"]
    found = [one.name for one in ALL if dialect.release in one.span and one.span.since in SYNAPSE]

    assert set(order) == set(found)
    for known in (newest, facts("streams")["order"][0][2]):
        assert [one for one in known if one in found] == [one for one in found if one in known]


@pytest.mark.parametrize("dialect", [CURRENT, NEWEST, Dialect.parse("1.80")], ids=str)
@pytest.mark.parametrize(
    ("row", "newest"),
    [
        ('["@ada:example.org",false]', '["@ada:example.org",false,false]'),
        ('["@ada:example.org",true]', '["@ada:example.org",true,false]'),
        ('["@ada:example.org",false,true]', '["@ada:example.org",false,true]'),
    ],
)
def test_device_lists_of_each_release_are_read(row: str, newest: str, dialect: Dialect) -> None:
    """The two items of 1.76 to 1.109 were refused in every dialect: each device change was missing."""
    assert newest.encode() == TABLE["device_lists"].canonical(row.encode(), dialect)
