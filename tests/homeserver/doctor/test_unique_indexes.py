"""The doctor knows which unique indexes a homeserver needs: what a restore leaves out is named."""

from pathlib import Path

import pytest

from synrepl.homeserver.doctor.before_start import StartCheck
from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.homeserver.doctor.examination import Doctor
from tests.homeserver.doctor.places import Place

DEVICES = "CREATE TABLE devices (user_id TEXT NOT NULL, device_id TEXT NOT NULL, display_name TEXT)"
UNIQUE = "CREATE UNIQUE INDEX device_uniqueness ON devices (user_id, device_id)"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place("postgresql", tmp_path)
    made.make_homeserver()
    made.do(
        "INSERT INTO schema_version VALUES (90)",
        "CREATE UNIQUE INDEX ON stream_positions (stream_name, instance_name)",
        DEVICES,
    )
    return made


def missing(place: Place) -> list[Complaint]:
    doctor = Doctor(place.database, now=lambda: 0.0)
    return [one for one in doctor.examine().complaints if one.kind == "unique_index_missing"]


def test_an_index_that_a_restore_left_out_is_named_with_its_statement(place: Place) -> None:
    """Each login was a 500 (matrix-org/synapse#7417)."""
    [found] = missing(place)

    assert "error" == found.severity
    assert "the table devices has no unique index on device_id, user_id" in found.text
    place.do(found.statement.rpartition("; ")[2])
    assert [] == missing(place)


def test_the_order_of_the_columns_is_no_matter(place: Place) -> None:
    """ON CONFLICT takes any order."""
    place.do(UNIQUE)

    assert [] == missing(place)


@pytest.mark.parametrize(
    "index",
    [
        "CREATE INDEX ON devices (user_id, device_id)",
        "CREATE UNIQUE INDEX ON devices (user_id)",
        "CREATE UNIQUE INDEX ON devices (user_id, device_id) WHERE display_name IS NULL",
    ],
)
def test_another_index_does_not_do(place: Place, index: str) -> None:
    place.do(index)

    assert len(missing(place)) == 1


@pytest.mark.parametrize("version", [71, 95])
def test_of_a_schema_that_is_not_known_nothing_is_said(place: Place, version: int) -> None:
    """And not that it is well."""
    place.do(f"UPDATE schema_version SET version = {version}")

    assert [] == missing(place)
    assert [] == Doctor(place.database, now=lambda: 0.0).examine().unique_tables


def test_it_keeps_no_homeserver_from_its_start(place: Place) -> None:
    """The homeserver does start: only what writes there fails."""
    report = StartCheck(place.database, allows_locale=True).run(applies=False)

    assert ["note"] == [one.severity for one in report.diagnosis.complaints if "unique" in one.kind]
    assert report.may_start


LOCKS = (
    "CREATE TABLE worker_read_write_locks (lock_name TEXT, lock_key TEXT, instance_name TEXT,"
    " write_lock BOOLEAN, token TEXT, PRIMARY KEY (lock_name, lock_key, instance_name))"
)


def test_indexes_of_locks_are_named_with_the_rows_that_they_are_of(place: Place) -> None:
    """No event was persisted without them (element-hq/synapse#19601)."""
    place.do(UNIQUE, LOCKS)
    found = missing(place)

    assert ["WHERE write_lock" in one.text for one in found] == [False, True]
    assert all("stands still" in one.text for one in found)
    assert all("DELETE FROM worker_read_write_locks" in one.remedy for one in found)
    place.do(*(one.statement.rpartition("; ")[2] for one in found))
    assert [] == missing(place)
