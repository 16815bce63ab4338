"""Sequences of no stream, by the columns that use them: one that is behind its table is found, and raised."""

from pathlib import Path

import pytest

from synrepl.homeserver.doctor.before_start import RaisedSequence, StartCheck, StartReport
from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.homeserver.doctor.examination import Doctor
from synrepl.storage.databases import Database
from tests.homeserver.doctor.places import Place

KIND = "counter_behind_table"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A homeserver's database with sequences of each kind; nothing is wrong."""
    place = Place("postgresql", tmp_path)
    place.make_homeserver()
    place.do(
        "CREATE TABLE receipts_linearized (stream_id BIGINT PRIMARY KEY, instance_name TEXT)",
        "CREATE SEQUENCE receipts_sequence START 2",
        "CREATE TABLE state_groups (id BIGINT PRIMARY KEY)",
        "CREATE SEQUENCE state_group_id_seq",
        "CREATE TABLE event_auth_chains (event_id TEXT, chain_id BIGINT)",
        "CREATE INDEX ON event_auth_chains (chain_id)",
        "CREATE SEQUENCE event_auth_chain_id",
        "CREATE TABLE application_services_txns (as_id TEXT, txn_id INTEGER, UNIQUE (as_id, txn_id))",
        "CREATE TABLE application_services_state (as_id TEXT PRIMARY KEY, last_txn INTEGER)",
        "CREATE SEQUENCE application_services_txn_id_seq",
        "CREATE TABLE instance_map (instance_id SERIAL PRIMARY KEY, instance_name TEXT)",
        "CREATE TABLE sliding_sync_connections"
        " (connection_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device_id TEXT)",
        "CREATE SEQUENCE used_by_a_default",
        "CREATE TABLE of_a_module (number BIGINT DEFAULT nextval('used_by_a_default') PRIMARY KEY)",
        "CREATE TABLE users (name TEXT PRIMARY KEY)",
        "CREATE SEQUENCE user_id_seq",
        "CREATE SEQUENCE of_nobody",
        "INSERT INTO users VALUES ('@ada:hs'), ('@7x:hs')",
    )
    return place


SEQUENCES = [
    "application_services_txn_id_seq",
    "event_auth_chain_id",
    "instance_map_instance_id_seq",
    "sliding_sync_connections_connection_key_seq",
    "state_group_id_seq",
    "used_by_a_default",
]

BEHIND = {
    "state_group_id_seq": ("state_groups", "INSERT INTO state_groups VALUES (18)"),
    "event_auth_chain_id": ("event_auth_chains", "INSERT INTO event_auth_chains VALUES ('$e', 18)"),
    "application_services_txn_id_seq": (
        "application_services_txns, application_services_state",
        "INSERT INTO application_services_txns VALUES ('bridge', 18)",
    ),
    "instance_map_instance_id_seq": ("instance_map", "INSERT INTO instance_map VALUES (18, 'w1')"),
    "sliding_sync_connections_connection_key_seq": (
        "sliding_sync_connections",
        "INSERT INTO sliding_sync_connections OVERRIDING SYSTEM VALUE VALUES (18, 'D')",
    ),
    "used_by_a_default": ("of_a_module", "INSERT INTO of_a_module VALUES (18)"),
}
"""A row that a copied table has, by the sequence that did not come along."""


def before_start(place: Place, *, applies: bool) -> StartReport:
    """As the command does."""
    return StartCheck(Database(place.url, statement_seconds=30.0)).run(applies=applies)


def found(place: Place) -> list[Complaint]:
    """What the doctor complains of."""
    return place.examine().complaints


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_sequence_behind_its_table_is_found_and_raised(place: Place, sequence: str) -> None:
    """With the statement that raises it; before a start it is an error, as the homeserver may raise none."""
    table, row = BEHIND[sequence]
    place.do(f"SELECT setval('{sequence}', 2)", row)
    complaint, *notes = found(place)

    assert ("error", KIND, "") == (complaint.severity, complaint.kind, complaint.stream)
    assert f"sequence {sequence} is at 2, behind the rows of {table} (18)" in complaint.text
    assert [KIND] != [one.kind for one in notes]
    assert [(KIND, False)] == [
        (one.kind, before_start(place, applies=False).may_start)
        for one in found(place)
        if one.severity == "error"
    ]
    report = before_start(place, applies=True)
    assert (True, [RaisedSequence("", sequence, 2, 18)]) == (report.may_start, report.raised)
    assert place.do(f"SELECT nextval('{sequence}')") == [(19,)]


def test_the_statement_raises_the_sequence(place: Place) -> None:
    """It is what an operator runs."""
    place.do("INSERT INTO state_groups VALUES (18)")
    (complaint,) = [one for one in found(place) if one.severity == "error"]
    place.do(complaint.statement)

    assert [] == [one for one in found(place) if one.severity == "error"]
    assert place.do("SELECT nextval('state_group_id_seq')") == [(19,)]


def test_what_was_examined_is_told(place: Place) -> None:
    """And what was not: nobody knows which rows have those ids."""
    diagnosis = place.examine()

    assert diagnosis.is_healthy
    assert ["receipts"] == diagnosis.streams
    assert [*SEQUENCES, "user_id_seq"] == diagnosis.sequences
    assert ["not examined, since it is not known which rows have their ids: of_nobody"] == [
        one.text for one in diagnosis.complaints if one.kind == "not_looked_at"
    ]
    assert SEQUENCES == before_start(place, applies=False).diagnosis.sequences


def test_a_sequence_that_a_column_shares_is_examined_once(place: Place) -> None:
    """A module may take its numbers from one that the homeserver's code names."""
    place.do("CREATE TABLE of_guests (number BIGINT DEFAULT nextval('user_id_seq') PRIMARY KEY)")

    assert sorted([*SEQUENCES, "user_id_seq"]) == sorted(place.examine().sequences)


def test_a_table_without_an_index_takes_no_scan_before_a_start(place: Place) -> None:
    """But of waiting transactions, which are few."""
    place.do("DROP INDEX event_auth_chains_chain_id_idx")
    report = before_start(place, applies=False)

    assert "event_auth_chain_id" not in report.diagnosis.sequences
    assert ["not examined, as no index gives the highest id of its rows: event_auth_chain_id"] == [
        one.text for one in report.diagnosis.complaints
    ]
    assert "application_services_txn_id_seq" in report.diagnosis.sequences


def test_numbers_of_users_that_are_taken_are_a_note(place: Place) -> None:
    """The homeserver tries the next."""
    place.do("INSERT INTO users VALUES ('@41:hs')")
    diagnosis = place.examine()

    assert diagnosis.is_healthy
    assert [("note", KIND)] == [(one.severity, one.kind) for one in diagnosis.complaints if one.kind == KIND]


def test_names_that_need_quotes_are_left_out_and_named(place: Place) -> None:
    """They are no homeserver's, and become part of no statement."""
    place.do('CREATE TABLE "Odd name" ("Number" SERIAL PRIMARY KEY)', 'INSERT INTO "Odd name" VALUES (7)')

    assert any("Odd name_Number_seq" in one.text for one in found(place) if one.kind == "not_looked_at")
    assert before_start(place, applies=True).may_start


def test_transactions_that_were_sent_count(place: Place) -> None:
    """No row waits, but a service has had the id, and ignores what comes with it again."""
    place.do("INSERT INTO application_services_state VALUES ('bridge', 18)")
    (complaint,) = [one for one in found(place) if one.severity == "error"]

    assert "sequence application_services_txn_id_seq is at 0, behind the rows of" in complaint.text
    assert "application services ignore transactions whose ids they have had" in complaint.text
    assert "SELECT setval('application_services_txn_id_seq', greatest(18," in complaint.statement


def test_a_sequence_that_descends_is_named(place: Place) -> None:
    """It is not compared with the highest row."""
    place.do(
        "CREATE SEQUENCE downward INCREMENT -1",
        "CREATE TABLE below (number BIGINT DEFAULT nextval('downward') PRIMARY KEY)",
        "INSERT INTO below VALUES (7)",
    )

    assert place.examine().is_healthy
    assert any("downward" in one.text for one in found(place) if one.kind == "not_looked_at")


def test_groups_of_states_in_another_database_are_told(place: Place) -> None:
    """As with a data store `state` of its own: nothing is known of them here."""
    place.do(
        "DROP SEQUENCE state_group_id_seq",
        "DROP TABLE state_groups",
        "CREATE TABLE event_to_state_groups (event_id TEXT, state_group BIGINT)",
    )

    assert any(one.text.startswith("not examined, state_group_id_seq is not here") for one in found(place))


def test_a_database_of_groups_of_states_alone(tmp_path: Path) -> None:
    """It is a homeserver's, and its sequences are examined."""
    place = Place("postgresql", tmp_path)
    place.do(
        "CREATE TABLE schema_version (version INTEGER)",
        "CREATE TABLE applied_schema_deltas (version INTEGER)",
        "CREATE TABLE state_groups (id BIGINT PRIMARY KEY)",
        "CREATE SEQUENCE state_group_id_seq",
        "INSERT INTO state_groups VALUES (18)",
    )
    diagnosis = place.examine()

    assert ("synapse", ["state_group_id_seq"]) == (diagnosis.kind, diagnosis.sequences)
    assert [("error", KIND)] == [(one.severity, one.kind) for one in diagnosis.complaints]


def test_a_statement_names_the_schemas_in_which_it_was_found(place: Place) -> None:
    """A clone beside public has sequences of the same names (denishpatel/pg-clone-schema#33)."""
    place.do(
        'CREATE SCHEMA "of Ada"',
        'CREATE SEQUENCE "of Ada".state_group_id_seq',
        'CREATE TABLE "of Ada".state_groups (id BIGINT PRIMARY KEY)',
        'INSERT INTO "of Ada".state_groups VALUES (18)',
    )
    url = f"{place.url}&options=-csearch_path%3D%22of%5C%20Ada%22%2Cpublic"

    def behind() -> list[Complaint]:
        return [
            one for one in Doctor(Database(url), now=lambda: 0.0).examine().complaints if one.kind == KIND
        ]

    assert [] == [one for one in found(place) if one.kind == KIND]
    [complaint] = behind()
    assert complaint.statement.startswith('SET search_path TO "of Ada", public; SELECT setval(')
    place.do(complaint.statement)
    assert [] == behind()
