"""The plan of an invalidation, and its announcement."""

import pytest
from twisted.internet.task import Clock

from synrepl.caches.names import Release, parse_release
from synrepl.errors import ConfigError
from synrepl.homeserver.configuration import Homeserver, Process, RedisSettings
from synrepl.homeserver.invalidation import (
    INSTANCE,
    MAX_ROWS,
    Announcer,
    Invalidator,
    is_by_key,
    make_plan,
    releases_of,
)
from synrepl.homeserver.invalidation_requests import (
    InvalidationReport,
    InvalidationRequest,
    ProcessReport,
)
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun

NEW: Release = (1, 163)
OLD: Release = (1, 66)
HOMESERVER = Homeserver(
    server_name="hs", database=None, redis=RedisSettings(), processes=(Process(name="master"),)
)


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (InvalidationRequest(name="get_user_by_id", key=["@a:hs"]), [("get_user_by_id", ["@a:hs"])]),
        (InvalidationRequest(all=["get_user_by_id", "get_user_by_id"]), [("get_user_by_id", None)]),
        (
            InvalidationRequest(rooms=["!r:hs", "!s:hs"]),
            [("dr_cache_fake", ["!r:hs"]), ("dr_cache_fake", ["!s:hs"])],
        ),
        (
            InvalidationRequest(name="_get_server_keys_json", key=["hs", "ed25519:1"]),
            [("_get_server_keys_json", ['["hs", "ed25519:1"]'])],
        ),
        (
            InvalidationRequest(name="cs_cache_fake", key=["!r:hs", "@a:hs"]),
            [("cs_cache_fake", ["!r:hs", "@a:hs"])],
        ),
        (InvalidationRequest(name="get_partial_rooms"), [("get_partial_rooms", [])]),
    ],
)
def test_invalidation_rows_have_the_forms_of_real_writers(
    wanted: InvalidationRequest, rows: list[tuple[str, list[str] | None]]
) -> None:
    """In the forms of real writers, with the time."""
    plan = make_plan(wanted, [NEW], now_ms=7)

    assert rows == [(row.cache_func, row.keys) for row in plan.rows]
    assert {7} == {row.invalidation_ts for row in plan.rows}
    assert plan.drops[NEW]
    assert bool(wanted.rooms) == bool(plan.notes)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (InvalidationRequest(name="get_user_in_directory", key=["@a:hs"]), "has no cache"),
        (InvalidationRequest(all=["nonsense"]), "has no cache nonsense"),
        (InvalidationRequest(all=["dr_cache_fake"]), "cannot be dropped whole: give room_id"),
        (
            InvalidationRequest(all=["_get_server_keys_json"]),
            "cannot be dropped whole: give server_name key_id",
        ),
        (
            InvalidationRequest(name="get_user_by_id"),
            "are user_id; 0 given; --all get_user_by_id drops the whole cache",
        ),
        (InvalidationRequest(name="get_user_filter", key=["@a:hs", "1"]), "use --all get_user_filter"),
        (InvalidationRequest(rooms=["#alias:hs"]), "begins with !"),
        (InvalidationRequest(rooms=[f"!{number}:hs" for number in range(MAX_ROWS + 1)]), "at most 1000"),
        (
            InvalidationRequest(
                name="cs_cache_fake", key=["!r:hs", *(f"@{number}:hs" for number in range(MAX_ROWS))]
            ),
            "at most 1000",
        ),
    ],
)
def test_refused_invalidations_say_what_to_do(wanted: InvalidationRequest, why: str) -> None:
    """With what to do instead."""
    with pytest.raises(ConfigError, match=why):
        make_plan(wanted, [NEW])


def test_processes_of_several_releases() -> None:
    """As during an upgrade: a name that one of them has is enough, and each drops what it knows."""
    plan = make_plan(
        InvalidationRequest(name="get_user_in_directory", key=["@a:hs"], rooms=["!r:hs"]), [OLD, NEW]
    )

    names = [row.cache_func for row in plan.rows]
    assert {"get_user_in_directory", "dr_cache_fake", "cs_cache_fake"} == set(names)
    assert "get_user_in_directory" in {one.cache for one in plan.drops[OLD]}
    assert "get_user_in_directory" not in {one.cache for one in plan.drops[NEW]}
    assert "get_event" not in {one.cache for one in plan.drops[OLD]}
    assert "only the state of the room" in plan.notes[0]
    assert "restart all of them before anybody here joins it again" in plan.notes[0]
    assert "ask for the deletion of one room once, and wait until it has ended" in plan.notes[0]


def test_keys_that_mean_something_else_in_an_older_release() -> None:
    """The room is first since 1.109; before, the event was."""
    wanted = InvalidationRequest(name="get_relations_for_event", key=["!r:hs"])
    plan = make_plan(wanted, [(1, 100), NEW])

    assert plan.drops[NEW]
    assert [] == plan.drops[1, 100]
    note = "Synapse 1.100 has other keys for get_relations_for_event, and drops nothing: --all "
    assert plan.notes[0].startswith(note)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("is_shadow_banned", "in the database there is users.shadow_banned: name one of these"),
        # A column of another meaning has this name as well.
        ("public_rooms", "the list of public rooms"),
        ("nothing_like_it", "has no cache nothing_like_it"),
    ],
)
def test_names_that_people_have_for_what_is_kept(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(InvalidationRequest(name=name), [NEW])


def test_what_clients_keep_is_told_with_a_room() -> None:
    """A room that was deleted stays with them (matrix-org/synapse#16001)."""
    notes = make_plan(InvalidationRequest(rooms=["!r:hs", "!s:hs"]), [NEW]).notes

    assert 1 == len([one for one in notes if "clear its own cache" in one])


@pytest.mark.parametrize("whole", [True, False])
def test_a_column_is_answered_with_the_caches_that_have_it(whole: bool) -> None:
    """ "UPDATE users SET admin = 1" is not believed until a restart (element-hq/synapse#18814)."""
    name = "users.admin"
    request = InvalidationRequest(all=[name]) if whole else InvalidationRequest(name=name, key=["@a:hs"])

    with pytest.raises(ConfigError, match=r"until these are dropped: get_user_by_id USER_ID"):
        make_plan(request, [NEW])


@pytest.mark.parametrize(
    ("name", "release", "note"),
    [
        # A room that was forgotten and joined again stayed forgotten (matrix-org/synapse#13262).
        ("get_forgotten_rooms_for_user", (1, 62), "rows of events (1.87) and rows of backfill (1.87)"),
        ("get_forgotten_rooms_for_user", (1, 87), ""),
        ("is_host_invited", (1, 80), "changes of the state of a room (1.86)"),
        ("is_host_invited", (1, 86), ""),
        ("get_user_by_id", (1, 62), ""),
    ],
)
def test_a_cache_that_newer_releases_drop_more_often(name: str, release: Release, note: str) -> None:
    """What is made right by hand grows stale again: the release has the bug."""
    plan = make_plan(InvalidationRequest(all=[name]), [release])
    told = [one for one in plan.notes if "does not drop" in one]

    assert (1 if note else 0) == len(told)
    assert all(note in one for one in told)


def test_a_cache_beside_a_memory_is_told() -> None:
    """The presence of a deactivated user stayed (matrix-org/synapse#15623)."""
    plan = make_plan(InvalidationRequest(name="_get_presence_for_user", key=["@a:hs"]), [NEW])

    assert "in the memory of the process that writes presence" in plan.notes[0]


@pytest.mark.parametrize(
    "name",
    ["get_cached_devices_for_user", "_get_cached_user_device", "get_device_list_last_stream_id_for_remote"],
)
@pytest.mark.parametrize(("release", "is_mended"), [((1, 66, 0), False), ((1, 68, 0), True)])
def test_a_cache_of_a_copy_is_told_from_the_copy(
    name: str, release: tuple[int, int, int], is_mended: bool
) -> None:
    """The table was stale, and each process read it anew (matrix-org/synapse#13651)."""
    (note,) = make_plan(InvalidationRequest(name=name, key=["@b:far"]), [release]).notes

    assert note.startswith(f"{name}: it is read from the table device_lists_remote_")
    assert "a row in device_lists_remote_resync" in note
    assert is_mended == ("13651" not in note)


@pytest.mark.parametrize(
    ("releases", "refusal", "note"),
    [
        (["1.135.0"], "a key of is_server_admin is not all text, which no row can name: use --all", ""),
        (["1.135"], "use --all is_server_admin", ""),
        (["1.135.2"], "", ""),
        (["1.136.0"], "", ""),
        (["1.135.0", "1.135.3"], "", "Synapse 1.135 has other keys for is_server_admin, and drops nothing"),
    ],
)
def test_a_key_that_a_patch_release_changed(releases: list[str], refusal: str, note: str) -> None:
    """1.135.0 kept the user as an object, which no text equals (element-hq/synapse#18783)."""
    request = InvalidationRequest(name="is_server_admin", key=["@a:hs"])
    known = [parse_release(one) for one in releases]
    if refusal:
        with pytest.raises(ConfigError, match=refusal):
            make_plan(request, known)
        whole = make_plan(InvalidationRequest(all=["is_server_admin"]), known)
        assert all(whole.drops.values())
        return

    plan = make_plan(request, known)

    assert plan.drops[known[-1]]
    assert (note != "") == any(one.startswith(note) for one in plan.notes if note)


@pytest.mark.parametrize(
    ("row", "received", "is_said"),
    [
        ({"name": "is_server_admin", "keys": ["@a:hs"]}, True, True),
        ({"name": "is_server_admin", "keys": None}, True, False),
        ({"name": "dr_cache_fake", "keys": ["!r:hs"]}, True, False),
        ({"name": "is_server_admin", "keys": ["@a:hs"]}, False, False),
        ({"name": "is_server_admin", "keys": ["@a:hs"]}, None, False),
    ],
)
def test_what_was_received_may_have_matched_nothing(
    row: dict[str, object], received: bool | None, is_said: bool
) -> None:
    """A release keeps the entry under another type of key (element-hq/synapse#18783): it stays stale."""
    processes = [] if received is None else [ProcessReport(name="master", received=received, why="x")]

    assert is_said == is_by_key(InvalidationReport(rows=[row], ids=[1], processes=processes))


@pytest.mark.parametrize(
    ("release", "drops", "spares"),
    [
        ((1, 80), {"is_host_joined"}, {"is_host_invited", "get_room_type"}),
        ((1, 100), {"get_event", "get_rooms_for_user_with_stream_ordering"}, {"get_room_type"}),
        ((1, 120), {"get_room_type", "get_sliding_sync_rooms_for_user"}, {"_get_current_state_event_id"}),
    ],
)
def test_a_release_between_drops_what_it_has(release: Release, drops: set[str], spares: set[str]) -> None:
    """Not what the newest would drop for the same row."""
    wanted = InvalidationRequest(rooms=["!r:hs"], name="cs_cache_fake", key=["!r:hs", "@a:hs"])
    found = {one.cache for one in make_plan(wanted, [release]).drops[release]}

    assert drops <= found
    assert not spares & found


@pytest.mark.parametrize(
    ("wanted", "row"),
    [
        (InvalidationRequest(name="my_module.lookup", key=["a", "b"]), ("my_module.lookup", ["a", "b"])),
        (InvalidationRequest(all=["my_module.lookup"]), ("my_module.lookup", None)),
    ],
)
def test_a_function_of_a_module(wanted: InvalidationRequest, row: tuple[str, list[str] | None]) -> None:
    """Modules name their caches so; whether there is one, only their processes know, and that is said."""
    plan = make_plan(wanted, [NEW])

    assert [row] == [(one.cache_func, one.keys) for one in plan.rows]
    assert {NEW: []} == plan.drops
    assert "my_module.lookup is taken for a function of a module" in plan.notes[0]
    assert "(ModuleApi.register_cached_function): one that was not keeps its entry" in plan.notes[0]


def test_a_release_newer_than_the_newest_known() -> None:
    """Its names are guessed, and that is said."""
    plan = make_plan(InvalidationRequest(all=["get_user_by_id"]), [(1, 170)])

    assert "Synapse 1.170 is newer than what is known here: taken for 1.163" in plan.notes[0]


def test_an_unknown_release() -> None:
    """The newest known counts, and that is said."""
    plan = make_plan(InvalidationRequest(all=["get_user_by_id"]), [])

    assert [NEW] == list(plan.drops)
    assert "taken for 1.163" in plan.notes[0]


def test_releases_of_processes() -> None:
    """Without those that told none."""
    told = [ProcessReport(name="a", release="1.163.2"), ProcessReport(name="b", why="refused")]

    assert [NEW] == releases_of(told)


def own(token: int) -> Command:
    """An own row that came back."""
    return Rdata(stream="caches", instance=INSTANCE, token=token, row=b"[]")


@pytest.mark.parametrize(
    ("heard", "overtaken"),
    [
        ([own(5), own(6)], []),
        ([Position(stream="caches", instance="w", token=4), own(5)], []),
        ([own(5), Position(stream="caches", instance="w", token=9)], []),
        ([Position(stream="caches", instance="w", token=6), own(5), own(7)], [5]),
        ([Rdata(stream="caches", instance="w", token=8, row=b"[]"), own(5), own(7)], [5, 7]),
        ([Rdata(stream="receipts", instance="w", token=80, row=b"[]"), own(5)], []),
        (
            [RdataRun(stream="caches", instance="w", tokens=[None, 6], rows=[b"[]"] * 2), own(5)],
            [5],
        ),
    ],
)
def test_overtaken_rows(heard: list[Command | RdataRun], overtaken: list[int]) -> None:
    """A row that comes after a higher id of another writer may be ignored by a process."""
    announcer = Announcer(Clock(), HOMESERVER)
    announcer.announce_position(0, 4)
    announcer.received(heard)

    assert overtaken == announcer.overtaken
    ours = [one for one in heard if isinstance(one, Rdata) and one.instance == INSTANCE]
    assert announcer.heard == ours[-1].token
    assert not announcer.is_name_taken


@pytest.mark.parametrize("stream", ["caches", "receipts"])
def test_another_process_of_our_name(stream: str) -> None:
    """It announced something before we did."""
    announcer = Announcer(Clock(), HOMESERVER)
    announcer.received([Position(stream=stream, instance=INSTANCE, token=4)])

    assert announcer.is_name_taken


def test_files_that_forbid_it() -> None:
    """A process of our name, no database, no Redis."""
    ours = Homeserver(server_name="hs", database=None, redis=None, processes=(Process(name=INSTANCE),))
    for homeserver, why in (
        (ours, f"is called {INSTANCE}"),
        (HOMESERVER, "no database"),
    ):
        invalidator = Invalidator(Clock(), homeserver, seconds=lambda: 0.0)
        request = InvalidationRequest(name="get_user_by_id", key=["@a:hs"], release="1.163")
        with pytest.raises(ConfigError, match=why):
            invalidator.invalidate(request).send(None)
