"""What is kept of tables and columns that were changed by SQL."""

import pytest

from synrepl.caches.names import all_names, parse_release
from synrepl.caches.relations import _BESIDES, _SENT, _relations, find_columns, find_like, said_of

SAID = [
    # name, release, what it says, what it does not say
    ("users.admin", "1.120", ["get_user_by_id USER_ID"], ["is_server_admin", "is_guest"]),
    ("users.admin", "1.150", ["get_user_by_id USER_ID", "is_server_admin USER"], []),
    # 1.135.0 kept the user as an object, which no row can name.
    ("users.admin", "1.135.0", ["--all is_server_admin"], ["is_server_admin USER"]),
    ("users.shadow_banned", "1.98", ["--all get_user_by_access_token", "get_user_by_id"], []),
    # What a release forgets after a time, and no row drops.
    (
        "destinations",
        "1.34",
        ["keeps get_destination_retry_timings for 5 minutes", "restart these processes"],
        ["a change is seen at the next read"],
    ),
    ("destinations.retry_last_ts", "1.17", ["keeps get_destination_retry_timings for 5 minutes"], []),
    ("destinations", "1.35", ["dropped: get_destination_retry_timings DESTINATION"], ["5 minutes"]),
    # A column that a release does not read any more.
    ("users.password_hash", "1.66", ["get_user_by_id USER_ID"], []),
    ("users.password_hash", "1.120", ["nothing of it in a cache"], ["get_user_by_id"]),
    ("access_tokens", "1.98", ["--all get_user_by_access_token"], ["get_user_by_access_token TOKEN"]),
    ("admin", "1.120", ["users.admin is a column", "get_user_by_id"], []),
    ("users", "1.120", ["users is a table", "get_user_locked_status USER_ID"], ["device"]),
    ("ratelimit_override", "1.66", ["get_ratelimit_for_user USER_ID"], []),
    ("pushers", "1.46", ["get_if_user_has_pusher USER_ID", "each pusher in its memory"], []),
    ("pushers", "1.163", ["nothing of it in a cache", "restart it"], ["get_if_user_has_pusher"]),
    ("profiles.displayname", "1.120", ["nothing of it in a cache", "member events"], ["next read"]),
    ("registration_tokens", "1.120", ["nothing of it in a cache", "seen at the next read"], []),
    ("device_lists_remote_cache", "1.120", ["get_cached_devices_for_user", "device_lists_remote_resync"], []),
    ("device_lists_remote_cache", "1.67", ["matrix-org/synapse#13651): update"], []),
    ("device_lists_remote_cache.content", "1.68", ["fetched anew"], ["13651"]),
    ("room_aliases", "1.120", ["get_aliases_for_room ROOM_ID"], ["--room"]),
    # Many caches of a room are dropped with all of the room, where a release can.
    ("current_state_events", "1.120", ["--room ROOM", "--all get_mutual_rooms_between"], ["is_host_joined"]),
    ("current_state_events", "1.66", ["is_host_joined ROOM_ID HOST"], ["--room"]),
    ("event_json.json", "1.120", ["--room ROOM drops all", "clients and other servers"], []),
    ("user_directory_stream_pos", "1.120", ["stop that process, change the row"], []),
    ("account_data", "1.120", ["get_global_account_data_for_user", "stream_id"], []),
]


@pytest.mark.parametrize(("name", "release", "says", "leaves_out"), SAID)
def test_a_changed_row_is_followed_to_what_has_it(
    name: str, release: str, says: list[str], leaves_out: list[str]
) -> None:
    """Who changed a row by SQL learns what to drop in this release, and what no row can drop."""
    said = said_of(name, parse_release(release))

    assert [one for one in says if one not in said] == []
    assert [one for one in leaves_out if one in said] == []


@pytest.mark.parametrize("name", ["", ".", "users.nothing", "nothing", "user_id", "my_module.lookup"])
def test_other_names_are_no_tables(name: str) -> None:
    """A column of many tables says nothing alone, and functions of modules look like columns."""
    assert find_columns(name) == []


def test_tables_name_caches_and_columns_that_exist() -> None:
    """The list fits the list of names, and is whole."""
    tables = _relations()
    copies = [(table, one) for table in tables.values() for one in table.copies]

    assert [one.cache for _, one in copies if one.cache not in all_names()] == []
    assert [one for table, one in copies if not one.columns or not one.columns <= table.columns] == []
    assert {*_BESIDES, *_SENT} - {*tables} == set()
    assert {"users", "devices", "events", "room_memberships"} <= {*tables}


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("is_shadow_banned", ["users.shadow_banned"]),
        ("registration_token", ["registration_tokens"]),
        ("thumbnail", ["remote_media_cache_thumbnails", "local_media_repository_thumbnails"]),
        ("get_user", []),
        ("nothing_like_it", []),
        ("", []),
    ],
)
def test_a_name_with_words_of_the_database_finds_these(name: str, like: list[str]) -> None:
    """People name what they know: a method that is not cached, or a word."""
    assert like == find_like(name)
