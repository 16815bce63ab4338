"""Names of caches by release, and the keys that fit them."""

import pytest

from synrepl.caches.names import KNOWN, NAMES, ROOM_ALIASES, Release, find_name, names_of, parse_release
from synrepl.caches.vintage import PACKED, Invalidation
from synrepl.errors import ConfigError
from tests.caches.fakes import NEWEST

BETWEEN: Release = (1, 100)


@pytest.mark.parametrize(
    ("text", "release"),
    [("1.163.2", (1, 163)), ("1.163", (1, 163)), ("1.164.0rc1 (b=x,1234)", (1, 164)), ("1.66.0", (1, 66))],
)
def test_release_names_are_parsed(text: str, release: Release) -> None:
    """As `synapse_build_info` has them."""
    assert release == parse_release(text)


@pytest.mark.parametrize("text", ["", "new", "1", "v1.66", "1.123456"])
def test_text_that_is_no_release_is_refused(text: str) -> None:
    """They are refused."""
    with pytest.raises(ConfigError, match="is no release of Synapse"):
        parse_release(text)


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("get_user_by_id", [(1, 20), (1, 66), BETWEEN, (1, 157), (1, 163), (1, 200)], []),
        ("get_user_in_directory", [(1, 66), BETWEEN], [(1, 157), (1, 163)]),
        ("is_user_erased", [(1, 66), (1, 163)], []),
        ("dr_cache_fake", [BETWEEN, (1, 157), (1, 200)], [(1, 20), (1, 66)]),
        ("cs_cache_fake", [(1, 66), (1, 163)], []),
    ],
)
def test_names_by_release(name: str, has: list[Release], lacks: list[Release]) -> None:
    """Between two known releases those of either count, elsewhere those of the nearest."""
    for release in has:
        assert name == find_name(name, release).name
    for release in lacks:
        with pytest.raises(ConfigError, match=f"has no cache {name}: it is known"):
            find_name(name, release)


def test_a_mistyped_name() -> None:
    """The nearest is proposed."""
    with pytest.raises(ConfigError, match=r"has no cache get_user_by_ids; did you mean get_user_by_id\?"):
        find_name("get_user_by_ids", (1, 163))


@pytest.mark.parametrize(
    ("name", "fits", "misfits"),
    [
        ("get_user_by_id", [("@a:hs",)], [(), ("@a:hs", "@b:hs"), ("a\0",), ("\udc80",)]),
        ("did_forget", [("@a:hs", "!r:hs")], [("@a:hs",)]),
        ("get_device", [("@a:hs",), ("@a:hs", "D")], [(), ("@a:hs", "D", "E")]),
        ("get_partial_rooms", [()], [("!r:hs",)]),
        ("get_threads", [("!r:hs",)], [("!r:hs", "5")]),
        ("get_user_filter", [], [("@a:hs", "1"), ()]),
        ("cs_cache_fake", [("!r:hs",), ("!r:hs", "@a:hs", "@b:hs")], [()]),
        ("dr_cache_fake", [("!r:hs",)], [(), ("!r:hs", "@a:hs")]),
        ("_get_server_keys_json", [("hs", "ed25519:1")], [("hs",)]),
    ],
)
def test_keys_are_checked_against_the_cache_name(
    name: str, fits: list[tuple[str, ...]], misfits: list[tuple[str, ...]]
) -> None:
    """A tree takes the first arguments too; what is no text cannot be named."""
    found = find_name(name, (1, 163))
    for keys in fits:
        found.check(keys)
    for keys in misfits:
        with pytest.raises(ConfigError):
            found.check(keys)


def test_null_keys_fail_only_for_aliases_and_packed_keys() -> None:
    """Receivers fail on them for aliases and packed keys only."""
    names = names_of(KNOWN[-1])
    cannot = {name for name, one in names.items() if not one.can_drop_all}

    assert {*PACKED, "cs_cache_fake", "ph_cache_fake", "dr_cache_fake"} == cannot


def test_an_alias_drops_what_the_release_has() -> None:
    """And the events, which no row names."""
    there = frozenset(names_of((1, 163)))
    found = find_name("dr_cache_fake", (1, 163)).drops(("!r:hs",), there)

    assert Invalidation("get_event", None) in found
    assert Invalidation("get_aliases_for_room", ("!r:hs",)) in found
    assert {one.cache for one in found} <= there | {"get_event"}


def test_the_first_alias_of_a_room_has_all_of_the_second() -> None:
    """So that one row is enough."""
    most, some = (set(NEWEST.expand(name, ["!r:hs"])) for name in ROOM_ALIASES)

    assert some <= most


def test_lines_are_well_formed() -> None:
    """No name twice in a release, and spans of known releases."""
    for one in NAMES:
        assert one.first in KNOWN
        assert one.last in KNOWN
        assert one.first <= one.last
    for release in KNOWN:
        there = [one.name for one in NAMES if one.first <= release <= one.last]
        assert len(there) == len(set(there))
