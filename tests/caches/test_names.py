"""Names of caches by release, and the keys that fit them."""

import itertools
import re

import pytest

from synrepl.caches.names import (
    NEWEST_KNOWN,
    ROOM_ALIASES,
    Release,
    all_names,
    find_name,
    names_of,
    parse_release,
)
from synrepl.caches.vintage import PACKED, Vintage
from synrepl.errors import ConfigError
from synrepl.wire.dialect import Dialect
from tests.releases import MINORS, at, facts

UNANNOTATED = {
    "filter_id",
    "from_token",
    "instance_id",
    "last_backfill_id",
    "limit",
    "state_group",
    "stream_id",
    "to_key",
    "from_key",
    "token_id",
}
"""Arguments that are no text, although old releases do not say so."""

BY_PAIRS = {"have_seen_event": ("1.36", "1.69", ("room_id_and_event_id",))}
"""Caches that are filled for a list of pairs: a key is one pair, although the function has two arguments."""


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("1.163.2", (1, 163)),
        ("1.163", (1, 163)),
        ("1.164.0rc1 (b=x,1234)", (1, 164)),
        ("1.66.0", (1, 66)),
        # A patch counts where it changed the key of a cache.
        ("1.135.0", (1, 135)),
        ("1.135.1", (1, 135)),
        ("1.135.2", (1, 135, 2)),
        ("1.135.9", (1, 135, 2)),
    ],
)
def test_release_names_are_parsed(text: str, release: Release) -> None:
    """As `synapse_build_info` has them."""
    assert release == parse_release(text)


@pytest.mark.parametrize("text", ["", "new", "1", "v1.66", "1.123456"])
def test_text_that_is_no_release_is_refused(text: str) -> None:
    """They are refused."""
    with pytest.raises(ConfigError, match="is no release of Synapse"):
        parse_release(text)


@pytest.mark.parametrize("dialect", MINORS, ids=str)
def test_a_release_has_its_caches_with_their_keys(dialect: Dialect) -> None:
    """Arguments in their order, which of them are text, and whether a part of the key is enough."""
    found, expected = {}, {}
    for name, one in names_of(dialect.release[:2]).items():
        if not one.is_packed and not one.is_alias:
            found[name] = (one.arguments, one.texts, one.is_tree)
    for name, spans in facts("caches")["names"].items():
        if (form := at(spans, dialect)) and not names_of(dialect.release[:2])[name].is_packed:
            words = [word.partition(":") for word in form[2]]
            is_text = [kind in ("", "str", "str?") and word not in UNANNOTATED for word, _, kind in words]
            texts = is_text.index(False) if False in is_text else len(words)
            expected[name] = (tuple(word for word, _, _ in words), texts, "tree" in form[3:])
    for name, listed in BY_PAIRS.items():
        if pair := at([listed], dialect):
            expected[name] = (pair[2], 0, True)

    assert expected == found


def test_an_entry_that_no_row_can_name_is_refused() -> None:
    """A row with the room and the event dropped nothing of it before 1.69 (matrix-org/synapse#13856)."""
    keys = ("!r:hs", "$e")
    with pytest.raises(ConfigError, match="--all have_seen_event"):
        find_name("have_seen_event", (1, 68)).check(keys)

    assert find_name("have_seen_event", (1, 68)).can_drop_all
    find_name("have_seen_event", (1, 69)).check(keys)


@pytest.mark.parametrize("dialect", MINORS, ids=str)
def test_a_release_has_its_special_names(dialect: Dialect) -> None:
    """Aliases, packed rows, and functions of modules."""
    special = {name for name, one in facts("caches")["special"].items() if at([one], dialect)}
    # It drops tokens of a login, and is no name of a cache; two patches have it.
    special -= {"introspection_token_invalidation"}
    names = names_of(dialect.release[:2])
    found = {name for name, one in names.items() if one.is_alias or one.is_packed}
    try:
        find_name("my_module.lookup", dialect.release[:2])
    except ConfigError:
        pass
    else:
        found.add("module.function")

    assert special == found


@pytest.mark.parametrize(
    ("release", "name", "why"),
    [
        (
            (1, 80),
            "dr_cache_fake",
            "has no cache dr_cache_fake (since 1.86), and no other cache that is known here in its place",
        ),
        (
            (1, 100),
            "get_room_type",
            "has no cache get_room_type (since 1.112), and no other cache that is known here in its place",
        ),
        ((1, 100), "get_user_suspended_status", "(since 1.107)"),
        (
            (1, 34),
            "get_destination_retry_timings",
            "for 5 minutes (since 0.33.6, until 1.35); wait, or restart",
        ),
        ((1, 163), "get_user_in_directory", "(since 0.22, until 1.89)"),
        ((1, 40), "get_rooms_for_user", "(until 0.27 and since 1.69)"),
        ((1, 140), "get_sliding_sync_rooms_for_user", "; did you mean get_sliding_sync_rooms_for_user_from_"),
        (
            (1, 130),
            "get_account_data_for_user",
            "(until 1.78); did you mean get_global_account_data_for_user or get_room_account_data_for_user?",
        ),
        (
            (1, 66),
            "my_module.lookup",
            "drops no caches of modules such as my_module.lookup: 1.69 and newer do; restart each process",
        ),
        ((1, 163), "my_module.", "has no cache my_module."),
    ],
)
def test_a_name_that_the_release_lacks(release: Release, name: str, why: str) -> None:
    """The releases that have it are told."""
    with pytest.raises(ConfigError, match=re.escape(why)):
        find_name(name, release)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("_membership_stream_cache", "remembers what changed up to which position"),
        ("MembershipStreamChangeCache", "remembers what changed up to which position"),
        ("ReceiptsRoomChangeCache", "remembers what changed up to which position"),
        ("*getEvent*", "--room ROOM drops all cached events"),
        ("_get_event_cache", "--room ROOM drops all cached events"),
        ("*stateGroupCache*", "groups of states never change"),
        ("sync", "kept for caches: sync_response_cache_duration"),
        ("lazy_loaded_members_cache", "each process keeps its own for 30 minutes"),
        ("sync_valid_filter", "whether the text of a filter is valid"),
        ("get_room_hierarchy_cache", "each process keeps its own for 5 minutes"),
    ],
)
def test_a_cache_that_no_row_names(name: str, why: str) -> None:
    """As metrics show them, and logs and threads call them: none is proposed in its place."""
    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        find_name(name, (1, 163))
    assert "did you mean" not in str(refused.value)
    assert "restart" in str(refused.value)


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
        ("my_module.lookup", [(), ("a", "b")], [("a\0",)]),
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
    names = names_of(NEWEST_KNOWN)
    cannot = {name for name, one in names.items() if not one.can_drop_all}

    assert {*PACKED, "cs_cache_fake", "ph_cache_fake", "dr_cache_fake"} == cannot
    assert set(PACKED) == {name for name, one in names.items() if one.is_packed}


@pytest.mark.parametrize("dialect", [one for one in MINORS if one.release >= (1, 86, 0)], ids=str)
def test_the_first_alias_of_a_room_has_all_of_the_second(dialect: Dialect) -> None:
    """So that one row is enough."""
    there = names_of(dialect.release[:2])
    most, some = (
        {one for one in Vintage.of(dialect).expand(name, ["!r:hs"]) if one.cache in there}
        for name in ROOM_ALIASES
    )

    assert some <= most


def test_a_cache_has_one_form_in_each_release() -> None:
    """The spans of a name do not overlap, and are in order."""
    for name, forms in all_names().items():
        for one, after in itertools.pairwise(forms):
            assert one.span.until is not None, name
            assert one.span.until <= after.span.since, name


@pytest.mark.parametrize(
    ("release", "name", "says"),
    [
        (
            (1, 72),
            "is_interested_in_room",
            ["each application service", "get_users_in_room ROOM", "restart the"],
        ),
        ((1, 74), "is_interested_in_room", ["get_aliases_for_room ROOM"]),
        ((1, 163), "is_interested_in_event", ["get_aliases_for_room ROOM"]),
        ((1, 163), "is_interested_in_presence", ["get_rooms_for_user USER"]),
        ((1, 163), "maybe_get_notice_room_for_user", ["server notices", "restart the main process"]),
        ((1, 40), "matches_user_in_member_list", ["restart the process that notifies application services"]),
        ((1, 40), "is_interested_in_room", ["does not have is_interested_in_room (since 1.55)"]),
        ((1, 163), "get_server_acl_for_room", ["restart each process"]),
        ((1, 163), "bulk_get_push_rules", ["it reads many of get_push_rules_for_user"]),
        ((1, 163), "_membership_stream_cache", ["from the rows of its stream"]),
        ((1, 163), "sync", ["caches: sync_response_cache_duration", "2 minutes", "restart of that process"]),
        ((1, 163), "/sync", ["2 minutes", "a failed answer is kept as well by releases before 1.156"]),
        ((1, 163), "/_matrix/client/v3/sync", ["2 minutes"]),
        ((1, 163), "sync_response_cache_duration", ["2 minutes"]),
        ((1, 163), "sync_response_cache", ["2 minutes"]),
        ((1, 163), "room_list", ["only requests that come while it is made"]),
        ((1, 163), "remote_room_list", ["30 seconds", "no setting"]),
        ((1, 66), "well-known", ["another homeserver", "24 hours", "restart"]),
        ((1, 66), "well_known_cache", ["5 minutes to 48 hours"]),
        ((1, 163), "srv", ["SRV records", "DNS"]),
        ((1, 163), "rc_login", ["memory of each process", "ratelimit_override"]),
        ((1, 163), "jwks", ["identity provider", "until its restart"]),
        ((1, 163), "typing", ["stream_writers"]),
        ((1, 163), "app_service_config_files", ["from its start to its restart"]),
        ((1, 163), "initial_sync_cache", ["while it is made"]),
        ((1, 163), "repl.send_event", ["30 minutes"]),
    ],
)
def test_a_name_that_no_row_reaches_is_told_with_what_empties_it(
    release: Release, name: str, says: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        find_name(name, release)

    assert all(one in str(raised.value) for one in says), str(raised.value)
    assert "has no cache" not in str(raised.value)
    assert "did you mean" not in str(raised.value)


def test_aliases_drop_the_interest_of_services_along_only_since_they_do() -> None:
    with pytest.raises(ConfigError) as raised:
        find_name("is_interested_in_room", (1, 73))

    assert "get_aliases_for_room" not in str(raised.value)
