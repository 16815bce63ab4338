"""Which releases have which streams, and items of a row: as their final tags show, from 1.66 to 1.163."""

import json

import pytest

from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import CURRENT, NEWEST, Dialect

TABLE = StreamTable.default()

ROWS = {
    "receipts": ["!r:hs", "m.read", "@a:hs", "$e", "main", {"ts": 1}],
    "device_lists": ["@a:hs", True, False],
}

ITEMS = [
    ("receipts", "1.68", 5),
    ("receipts", "1.69", 6),
    ("device_lists", "1.13", 1),
    ("device_lists", "1.75", 1),
    ("device_lists", "1.76", 2),
    ("device_lists", "1.109", 2),
    ("device_lists", "1.110", 3),
    ("device_lists", "1.163", 3),
]


@pytest.mark.parametrize(("stream", "release", "count"), ITEMS)
def test_a_row_has_the_items_of_its_release(stream: str, release: str, count: int) -> None:
    """Workers of a release fail on items that it does not know."""
    (text,) = TABLE[stream].project_fact(json.dumps([ROWS[stream]]).encode(), Dialect.parse(release))

    assert count == len(json.loads(text))


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


STREAMS = [
    ("un_partial_stated_room", "1.74", None),
    ("un_partial_stated_event", "1.75", None),
    ("thread_subscriptions", "1.135", None),
    ("sticky_events", "1.148", None),
    ("quarantined_media", "1.152", None),
    ("profile_updates", "1.159", None),
    ("tag_account_data", "0.21", "1.76"),
    ("user_signature", "1.6", "1.76"),
]


@pytest.mark.parametrize(("stream", "since", "until"), STREAMS)
def test_a_stream_is_offered_to_the_releases_that_have_it(stream: str, since: str, until: str | None) -> None:
    """A process disconnects at a stream that it does not know."""
    has = TABLE[stream].span

    assert Dialect.parse(since).release in has
    if until is None:
        assert Dialect.parse("1.163").release in has
        major, minor = since.split(".")
        assert Dialect.parse(f"{major}.{int(minor) - 1}").release not in has
    else:
        assert Dialect.parse("1.75").release in has
        assert Dialect.parse(until).release not in has
