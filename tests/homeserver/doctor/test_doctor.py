"""The doctor on both databases: what it sees, what it says, what it mends, and what it leaves alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from synrepl.errors import ConfigError, StorageError
from synrepl.homeserver.doctor.complaints import Diagnosis
from synrepl.homeserver.doctor.stalls import find_stalls
from synrepl.storage.checked_rows import crc_of
from synrepl.storage.databases import Database, engine_for
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.id_tables.writers import WriterState
from tests.homeserver.doctor.places import FLAVORS, Place, things
from tests.postgres import shared_server
from tests.storage.builders import facts_after
from tests.storage.engines import lose

FACTS = [("events", "A", 0, 1), ("events", "A", 1, 2), ("to_device", "B", 0, 1), ("events", "A", 2, 5)]


@pytest.fixture(params=FLAVORS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty database of each kind."""
    return Place(request.param, tmp_path)


@pytest.fixture
def postgres(tmp_path: Path) -> Place:
    """An empty PostgreSQL database."""
    return Place("postgresql", tmp_path)


def kinds(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """How grave, and what."""
    return [(one.severity, one.kind) for one in diagnosis.complaints]


# -- ids ---------------------------------------------------------------------------------------------------


def rows_beyond(place: Place) -> IdStream:
    """A table ahead of its sequence, as after a rollback to an older release and forward again."""
    for token in (2, 3, 9):
        place.row(token)
    return things("A")


def position_beyond(place: Place) -> IdStream:
    """S#18544: 32 above the sequence after a switch-over and back."""
    place.set_sequence(4)
    place.row(4)
    place.position(36)
    return things("A")


def started_with_2(place: Place) -> IdStream:
    """S#18712: `last_value` was taken for the last value, before the first was given."""
    place.set_sequence(2, is_called=False)
    place.position(2)
    return things("A")


def ported_with_one_row(place: Place) -> IdStream:
    """S#19671."""
    place.set_sequence(1)
    place.row(2)
    place.position(2)
    return things("A")


def never_used(place: Place) -> IdStream:
    """It would begin with 1, which everybody has."""
    place.set_sequence(1, is_called=False)
    return things("A")


def stranger(place: Place) -> IdStream:
    """A writer that was taken out of the configuration."""
    place.set_sequence(9)
    place.position(9)
    place.position(3, "it's gone")
    return things("A")


def downwards(place: Place) -> IdStream:
    """Backfilled events count down."""
    place.row(-8)
    place.position(-9)
    return things("A", negative=True)


BROKEN: list[tuple[Callable[[Place], IdStream], list[tuple[str, str]], int]] = [
    (rows_beyond, [("error", "sequence_behind_tables")], 10),
    (position_beyond, [("error", "sequence_behind_positions")], 37),
    (started_with_2, [("error", "sequence_behind_positions")], 3),
    (
        ported_with_one_row,
        [("error", "sequence_behind_tables"), ("error", "sequence_behind_positions")],
        3,
    ),
    (never_used, [("warning", "sequence_unused")], 2),
    (stranger, [("warning", "unknown_writer"), ("note", "writer_behind")], 10),
    (downwards, [("error", "sequence_behind_tables"), ("error", "sequence_behind_positions")], 10),
]


@pytest.mark.parametrize(("damage", "seen", "next_id"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_wrong_with_ids_is_seen_and_mended(
    place: Place, damage: Callable[[Place], IdStream], seen: list[tuple[str, str]], next_id: int
) -> None:
    """And a second look finds nothing."""
    place.make_ids()
    stream = damage(place)
    doctor = place.doctor(stream)

    found = doctor.examine()
    mended = doctor.repair(found)

    assert seen == kinds(found)
    assert not found.is_healthy
    assert mended.is_healthy
    assert [one.kind for one in mended.complaints if one.mended] == [
        kind for severity, kind in seen if severity != "note"
    ]
    assert [] == doctor.examine().complaints
    assert next_id == place.next_id()


@pytest.mark.parametrize(("damage", "seen", "next_id"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_the_statements_do_the_same(
    place: Place, damage: Callable[[Place], IdStream], seen: list[tuple[str, str]], next_id: int
) -> None:
    """In any order, more than once."""
    place.make_ids()
    stream = damage(place)
    statements = [one.statement for one in place.examine(stream).complaints if one.statement]

    place.do(*statements, *reversed(statements))

    assert [] == place.examine(stream).complaints
    assert next_id == place.next_id()


def test_a_statement_that_is_run_late_takes_nothing_back(place: Place) -> None:
    """The homeserver was started in between."""
    place.make_ids()
    place.row(9)
    statement = place.examine(things("A")).complaints[0].statement
    place.set_sequence(50)

    place.do(statement)

    assert place.next_id() == 51


def test_examining_and_healthy(place: Place) -> None:
    """Nothing is message where nothing is wrong."""
    place.make_ids()
    place.make_log(*FACTS)
    place.row(2)
    place.set_sequence(2)
    place.position(2)
    place.told("A", 2)

    found = place.examine(things("A"))

    assert (["things"], "synrepl", 4, []) == (
        found.streams,
        found.kind,
        found.facts_checked,
        found.complaints,
    )
    assert found.is_healthy


def test_a_stream_without_sequence(place: Place) -> None:
    """A reader may leave it out: what is beyond the rows is then no wonder, and there is nothing to raise."""
    place.make_ids()
    place.position(36)
    place.position(36, "gone")
    doctor = place.doctor(things("A", sequence=""))

    found = doctor.examine()

    assert [("warning", "unknown_writer")] == kinds(found)
    assert doctor.repair(found).is_healthy
    assert [("things", "A", 36)] == place.tables()["stream_positions"]


def test_what_is_not_there_does_not_hide_the_rest(place: Place) -> None:
    """A table misnamed in the configuration."""
    place.make_ids()
    place.row(9)
    wrong = IdStream(name="others", sequence="", tables=(IdTable(name="no_such_table"),), writers=("A",))
    doctor = place.doctor(wrong, things("A"))

    found = doctor.examine()
    mended = doctor.repair(found)

    assert [("error", "sequence_behind_tables"), ("error", "not_examined")] == kinds(found)
    assert "no_such_table" in found.complaints[1].text
    assert found.complaints[1].stream == "others"
    assert [True, False, False] == [one.mended for one in mended.complaints]
    assert mended.complaints[2].kind == "not_mended"


# -- writers -----------------------------------------------------------------------------------------------


def test_an_unfinished_id_is_named(place: Place) -> None:
    """Who, which, how long, where."""
    place.make_ids()
    place.set_sequence(9)
    place.told("A", 4, unfinished=[5, 6], age=47)

    found = place.examine(things("A"))

    assert [("warning", "unfinished_id")] == kinds(found)
    assert found.complaints[0].text == (
        "A has 2 ids from 5 on unfinished, reserved 47 s ago by send (process host:7:cafe):"
        " the stream waits for id 5"
    )


def test_a_young_unfinished_id_is_no_news(place: Place) -> None:
    """Every busy writer has some."""
    place.make_ids()
    place.told("A", 4, unfinished=[5], age=2)

    assert [] == place.examine(things("A")).complaints


def test_a_silent_writer_that_holds_the_stream(place: Place) -> None:
    """Its process is gone, and nobody was there to release what it had."""
    place.make_ids()
    place.set_sequence(9)
    place.position(4, "A")
    place.position(9, "B")
    place.told("A", 4, silent=100)
    place.told("B", 9)

    found = place.examine(things("A", "B"))

    assert [("warning", "silent_writer"), ("warning", "writer_behind")] == kinds(found)
    assert "A is at 4, 5 behind" in found.complaints[1].text


def test_a_silent_writer_that_holds_nothing(place: Place) -> None:
    """It was stopped in order."""
    place.make_ids()
    place.set_sequence(9)
    place.position(9, "A")
    place.told("A", 9, silent=86_400)

    found = place.examine(things("A"))

    assert [("note", "silent_writer")] == kinds(found)
    assert found.is_healthy


def test_a_writer_that_ended_well_is_not_silent() -> None:
    """Nobody waits for it to tell anything, however long ago it was."""
    ended = WriterState(
        stream="things",
        writer="A",
        process="",
        told_at=0.0,
        position=4,
        unfinished=0,
        oldest_id=None,
        oldest_since=None,
        owner=None,
    )

    for state, whys in ((ended, ["behind"]), (replace(ended, process="host:1"), ["silent", "behind"])):
        assert whys == [stall.why for stall in find_stalls([state], {"things": {"A": 4, "B": 9}}, 1e6)]


# -- the log -----------------------------------------------------------------------------------------------


def test_an_empty_log(place: Place) -> None:
    """Nothing is in it, and nothing is wrong."""
    place.make_log()

    found = place.examine()

    assert ("synrepl", 0, []) == (found.kind, found.facts_checked, found.complaints)


@pytest.mark.parametrize(
    ("damage", "kind", "text"),
    [
        (
            "DELETE FROM {}facts WHERE serial = 2",
            "missing_serial",
            "the log: serial 2 is missing",
        ),
        (
            "DELETE FROM {}facts WHERE serial < 3",
            "missing_serial",
            "the log: serial 1 is missing",
        ),
        (
            "UPDATE {}facts SET writer = 'X' WHERE serial = 2",
            "wrong_digest",
            "the log: the digest of serial 2 does not follow from the facts before it",
        ),
        (
            "UPDATE {}facts SET committed_at_ms = committed_at_ms + 1 WHERE serial IN (2, 4)",
            "wrong_digest",
            "the log: the digest of serial 2 does not follow from the facts before it (2 such facts)",
        ),
    ],
)
def test_a_log_that_was_changed(place: Place, damage: str, kind: str, text: str) -> None:
    """Each fact stands for all before it. It is told, and nothing is made up to mend it."""
    place.make_log(*FACTS)
    place.change(damage)
    doctor = place.doctor()

    found = doctor.examine()

    assert (kind, text) == (found.complaints[0].kind, found.complaints[0].text)
    assert found.facts_checked == place.do(f"SELECT count(*) FROM {place.schema}facts")[0][0]
    assert doctor.repair(found) == found


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE {}positions SET token = 2 WHERE stream = 'events'",
        "DELETE FROM {}positions WHERE stream = 'events'",
    ],
)
def test_a_position_behind_its_facts(place: Place, damage: str) -> None:
    """A daemon refuses to open such a log. The facts tell what is right."""
    place.make_log(*FACTS)
    place.change(damage)
    doctor = place.doctor()

    found = doctor.examine()
    mended = doctor.repair(found)

    assert [("error", "position_behind_facts")] == kinds(found)
    assert found.complaints[0].stream == "events"
    assert mended.is_healthy
    assert [] == doctor.examine().complaints
    engine = engine_for(place.url)
    assert {("events", "A"): 5, ("to_device", "B"): 1} == engine.open().positions
    engine.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE {}positions SET token = 7 WHERE stream = 'events'",
        "INSERT INTO {}positions (stream, writer, token) VALUES ('events', 'C', 7)",
    ],
)
def test_a_position_ahead_of_its_facts_is_left_alone(place: Place, damage: str) -> None:
    """The end of the log is lost, which the chain cannot show; to lower it would give tokens twice."""
    place.make_log(*FACTS)
    place.change(damage)
    doctor = place.doctor()
    before = place.tables()

    found = doctor.repair(doctor.examine())

    assert [("error", "position_ahead_of_facts")] == kinds(found)
    assert "the end of the log is lost" in found.complaints[0].text
    assert before == place.tables()


@pytest.mark.parametrize(
    ("damage", "kind", "text"),
    [
        (
            "UPDATE {}facts SET token = token + 8 WHERE serial IN (2, 4)",
            "damaged_fact",
            "the log: serial 2, 4 (2 such facts) does not fit its checksum, of events",
        ),
        (
            "UPDATE {}positions SET token = token + 8",
            "damaged_row",
            "the log: 2 of the rows of positions do not fit their checksums",
        ),
        *(
            (
                f"UPDATE {{}}log_header SET schema_version = {version}",
                "damaged_row",
                "the log: 1 of the rows of log_header do not fit their checksums",
            )
            for version in (0, 18)
        ),
    ],
)
def test_what_does_not_fit_its_checksum(place: Place, damage: str, kind: str, text: str) -> None:
    """It is told where that is, and nothing is made of it."""
    place.make_log(*FACTS)
    place.do(damage.format(place.schema))

    found = place.examine()

    assert (kind, text) in [(one.kind, one.text) for one in found.complaints]


def test_a_log_that_lost_history_is_whole(place: Place) -> None:
    """Its positions went back to where that ended: they are right, and must not be mended."""
    place.make_log(*FACTS)
    engine = engine_for(place.url)
    engine.open()
    lose(engine, "events", 3)
    engine.close()
    place.change("UPDATE {}positions SET token = 0 WHERE stream = 'to_device'")
    doctor = place.doctor()

    found = doctor.examine()
    mended = doctor.repair(found)

    assert [("error", "position_behind_facts")] == kinds(found)
    assert found.complaints[0].stream == "to_device"
    assert mended.is_healthy
    engine = engine_for(place.url)
    assert {("events", "A"): 3, ("to_device", "B"): 1} == engine.open().positions
    engine.close()


def test_late_facts_leave_positions_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last fact of an unordered stream need not be the one that its position is from."""
    place.make_log(("backfill", "A", 0, 9), ("backfill", "A", 8, 8), ("backfill", "A", 7, 7))
    monkeypatch.setattr("synrepl.homeserver.doctor.log_check.NEWEST", 2)

    assert [] == place.examine(whole_log=True).complaints
    assert [] == place.examine(whole_log=False).complaints


@pytest.mark.parametrize("damage", ["UPDATE {}positions SET token = 7", "DELETE FROM {}positions"])
def test_a_position_is_mended_to_the_highest_token(place: Place, damage: str) -> None:
    """Mended to the last one, it would have facts ahead of it again."""
    place.make_log(("backfill", "A", 0, 9), ("backfill", "A", 8, 8))
    place.change(damage)
    doctor = place.doctor()

    assert doctor.repair(doctor.examine()).is_healthy
    assert [(9,)] == place.do(f"SELECT token FROM {place.schema}positions")


def test_a_quick_look_checks_the_newest(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is older is not read."""
    place.make_log(*FACTS)
    place.change("UPDATE {}facts SET writer = 'X' WHERE serial = 2")
    monkeypatch.setattr("synrepl.homeserver.doctor.log_check.NEWEST", 2)

    quick = place.examine(whole_log=False)

    assert (2, []) == (quick.facts_checked, quick.complaints)


def test_progress_is_reported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many more, of how many."""
    place.make_log(*FACTS)
    monkeypatch.setattr("synrepl.homeserver.doctor.log_check.AT_ONCE", 3)
    told: list[tuple[int, int]] = []

    place.doctor(progress=lambda more, total: told.append((more, total))).examine()

    assert [(3, 4), (1, 4)] == told


def test_facts_that_arrive_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon runs beside: what is looked at is one moment."""
    facts = place.make_log(*FACTS)
    monkeypatch.setattr("synrepl.homeserver.doctor.log_check.AT_ONCE", 1)
    engine = engine_for(place.url)
    engine.open()
    last = [facts[-1]]

    def append(more: int, total: int) -> None:
        token = last[-1].token
        last.extend(facts_after(last[-1], ("events", "A", token, token + 1)))
        engine.commit(last[-1:], [])

    found = place.doctor(progress=append).examine()
    serial = engine.head().serial
    engine.close()

    assert (4, []) == (found.facts_checked, found.complaints)
    assert serial == 8


def test_a_log_of_a_newer_release(place: Place) -> None:
    """It may mean anything."""
    place.make_log(*FACTS)
    crc = crc_of((9, 1, 0))
    place.do(f"UPDATE {place.schema}log_header SET schema_version = 9, epoch = 1, boots = 0, crc = {crc}")

    found = place.examine()

    assert [("error", "newer_schema")] == kinds(found)
    assert "schema version is 9, this release knows" in found.complaints[0].text


def test_a_log_of_an_older_release(place: Place) -> None:
    """A daemon would refuse it, too."""
    path = Path(__file__).parents[2] / "storage" / "older_log" / f"{place.flavor}.sql"
    place.do(*[one for one in path.read_text("utf-8").split(";\n") if "TRANSACTION" not in one][:-1])

    found = place.examine()

    assert ("synrepl", [("error", "older_schema")]) == (found.kind, kinds(found))
    assert "a release before 26.11.0 wrote it" in found.complaints[0].text


# -- what is no database of ours ---------------------------------------------------------------------------


def test_a_database_without_known_tables_is_reported(place: Place) -> None:
    """Most likely another one was meant."""
    place.do("CREATE TABLE facts (about TEXT)")

    found = place.examine()

    assert ("other", [("error", "nothing_known")]) == (found.kind, kinds(found))
    assert "choose another database" in found.complaints[0].remedy


def test_a_database_without_any_table_is_called_empty(place: Place) -> None:
    """A copy that failed leaves one (matrix-org/synapse#15219): no other need be chosen."""
    found = place.examine()

    assert ("other", [("error", "nothing_known")]) == (found.kind, kinds(found))
    assert "has no tables" in found.complaints[0].text
    assert "synapse_port_db" in found.complaints[0].remedy


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: f"sqlite:{folder}/none.db", "there is no file"),
        (lambda folder: f"sqlite:{folder}", "there is no file"),
        (lambda folder: "postgresql://nobody@127.0.0.1:1/none", "connect"),
        (lambda folder: f"sqlite:{_text(folder)}", "file is not a database"),
    ],
)
def test_a_database_that_cannot_be_opened_is_reported(
    make: Callable[[Path], str], why: str, tmp_path: Path
) -> None:
    """One line says why."""
    with pytest.raises(StorageError, match=why):
        _At(make(tmp_path)).examine()


class _At(Place):
    def __init__(self, url: str) -> None:
        self.database = Database(url)


def _text(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("nothing that SQLite would have written, and rather long at that" * 20)
    return path


def test_another_kind_of_database() -> None:
    """And its password is not repeated."""
    with pytest.raises(ConfigError) as caught:
        Database("mysql://me:secret@host/db")

    assert "secret" not in str(caught.value)


# -- reading only ------------------------------------------------------------------------------------------


def test_an_examination_cannot_write(place: Place) -> None:
    """Whatever it would try: the database itself refuses."""
    place.make_ids()

    with pytest.raises(StorageError, match=r"read-?only"):
        place.database.read_transaction("try", lambda cursor: cursor.execute("DELETE FROM stream_positions"))


def test_the_session_is_read_only_and_sees_one_moment(postgres: Place) -> None:
    """As PostgreSQL says it."""

    def look(cursor: Any) -> list[str]:
        message = []
        for name in ("transaction_read_only", "transaction_isolation"):
            cursor.execute(f"SHOW {name}")
            message.append(cursor.fetchone()[0])
        return message

    assert ["on", "repeatable read"] == postgres.database.read_transaction("look", look)


@pytest.fixture
def reader(postgres: Place) -> Iterator[str]:
    """The URL of a user who may read nothing yet."""
    server = shared_server()
    server.execute("CREATE ROLE reads LOGIN")
    yield postgres.url.replace("postgres@", "reads@")
    with psycopg.connect(postgres.url, autocommit=True) as database:
        database.execute("DROP OWNED BY reads")
    server.execute("DROP ROLE reads")


def test_rights_on_some_tables_only(postgres: Place, reader: str) -> None:
    """It is message which is missing, and the others are examined."""
    postgres.make_ids()
    postgres.make_log(*FACTS)
    postgres.row(9)
    postgres.do(
        "CREATE TABLE secrets (stream_id BIGINT, instance_name TEXT)",
        "GRANT SELECT ON stream_positions, facts_of_things, things_sequence TO reads",
    )
    secret = IdStream(name="secret", sequence="", tables=(IdTable(name="secrets"),))
    doctor = _At(reader).doctor(secret, things("A"))

    found = doctor.examine()
    mended = doctor.repair(found)

    assert [
        ("error", "sequence_behind_tables"),
        ("error", "not_examined"),
        ("error", "not_examined"),
    ] == kinds(found)
    assert [
        "not examined: permission denied for table secrets",
        "not examined: permission denied for schema synrepl (needed for the log)",
    ] == [one.text for one in found.complaints[1:]]
    assert found.complaints[1].remedy == "grant this user SELECT (on a schema: USAGE)"
    assert not mended.is_healthy
    assert "the ids could not be repaired: must be owner of sequence things_sequence" in [
        one.text for one in mended.complaints
    ]


def test_what_every_stream_needs_is_told_once(postgres: Place, reader: str) -> None:
    """Not once for each stream."""
    postgres.make_ids()
    postgres.do("GRANT SELECT ON facts_of_things, things_sequence TO reads")

    found = _At(reader).examine(things("A"), things("A", name="more"))

    needed_for = "things, more, the writers' unfinished ids"
    assert [f"not examined: permission denied for table stream_positions (needed for {needed_for})"] == [
        one.text for one in found.complaints
    ]


# -- a homeserver's own ------------------------------------------------------------------------------------


def make_homeserver(place: Place) -> None:
    """The names that matter, of a homeserver that has two of the streams."""
    place.make_homeserver()
    place.do(
        "CREATE TABLE receipts_linearized (stream_id BIGINT, instance_name TEXT)",
        "CREATE TABLE pushers (id BIGINT)",
    )
    if place.flavor == "postgresql":
        place.do("CREATE SEQUENCE receipts_sequence", "SELECT setval('receipts_sequence', 4)")


def test_a_homeservers_database_is_only_read(postgres: Place) -> None:
    """What would mend it is said, and nothing done. A stream without sequence is one of an older release."""
    make_homeserver(postgres)
    postgres.position(36, "master", "receipts")
    before = postgres.tables()
    doctor = postgres.doctor()

    found = doctor.repair(doctor.examine())

    assert ("synapse", ["receipts"]) == (found.kind, found.streams)
    assert [("error", "sequence_behind_positions")] == kinds(found)
    assert found.complaints[0].text.endswith("; the homeserver refuses to start with it")
    assert found.complaints[0].statement == (
        "SELECT setval('receipts_sequence', greatest(36, (SELECT last_value FROM receipts_sequence)))"
    )
    assert not found.complaints[0].mended
    assert before == postgres.tables()
    assert [(4,)] == postgres.do("SELECT last_value FROM receipts_sequence")


def test_a_homeservers_database_is_only_read_for_a_stream_that_is_configured(postgres: Place) -> None:
    """A daemon that reads its tables names them; they are the homeserver's all the same."""
    make_homeserver(postgres)
    postgres.position(36, "master", "receipts")
    before = postgres.tables()
    receipts = IdStream(
        name="receipts",
        sequence="receipts_sequence",
        tables=(IdTable(name="receipts_linearized"),),
        writers=("master",),
    )
    doctor = postgres.doctor(receipts)

    found = doctor.repair(doctor.examine())

    assert [("error", "sequence_behind_positions")] == kinds(found)
    assert before == postgres.tables()
    assert [(4,)] == postgres.do("SELECT last_value FROM receipts_sequence")


def test_a_homeservers_streams_with_the_writers_that_are_configured(postgres: Place) -> None:
    """The configuration of a daemon that reads these tables adds to what is known of them."""
    make_homeserver(postgres)
    postgres.position(4, "master", "receipts")
    postgres.position(4, "gone", "receipts")
    postgres.make_ids()
    receipts = IdStream(
        name="receipts", sequence="", tables=(IdTable(name="receipts_linearized"),), writers=("master",)
    )

    found = postgres.examine(receipts, things("A"))

    assert ["receipts", "things"] == found.streams
    assert [("warning", "unknown_writer")] == kinds(found)


def test_a_log_in_a_homeservers_database_is_repaired(place: Place) -> None:
    """Its tables are those of the daemon; the homeserver's stay as they are."""
    make_homeserver(place)
    place.make_log(*FACTS)
    place.change("UPDATE {}positions SET token = 2 WHERE stream = 'events'")
    doctor = place.doctor()

    mended = doctor.repair(doctor.examine())

    assert "synapse" == mended.kind
    assert [True] == [one.mended for one in mended.complaints if one.kind == "position_behind_facts"]
    assert "position_behind_facts" not in [kind for _, kind in kinds(doctor.examine())]


def test_a_homeserver_on_sqlite(tmp_path: Path) -> None:
    """It has no sequences."""
    place = Place("sqlite", tmp_path)
    make_homeserver(place)

    found = place.examine()

    assert ("synapse", []) == (found.kind, found.streams)
    assert [("note", "no_sequences")] == kinds(found)
    assert found.is_healthy


def test_facts_that_no_primary_can_have_written_are_named(place: Place) -> None:
    """One daemon is primary in an epoch; releases up to 26.11.0 stored what others published, too."""
    place.make_log(
        ("promises", "master", 0, 1), ("promises", "persister1", 0, 10), ("declarations", "master", 0, 1)
    )

    found = place.examine().complaints

    assert ["unproven_facts", "unproven_facts"] == [one.kind for one in found]
    assert "serial 1 by master, 2 by persister1 (2 such facts)" in found[0].text
