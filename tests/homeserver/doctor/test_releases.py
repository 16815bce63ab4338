"""The doctor knows the sequences of every release, or asks the database for them."""

from synrepl.homeserver.doctor.counters import BY_CODE, USER_IDS
from synrepl.homeserver.doctor.synapse import STREAMS
from tests.releases import facts

SEQUENCES = facts("sequences")["sequences"]


def columns_of(kind: str) -> dict[str, set[str]]:
    """The columns, of any release, whose numbers come from each sequence of this kind."""
    return {
        name: {column for _, _, columns in one["columns"] for column in columns}
        for name, one in SEQUENCES.items()
        if one["kind"] == kind
    }


def test_sequences_of_streams() -> None:
    """With the names in `stream_positions`, and all columns."""
    found = {one.sequence: {f"{table.name}.{table.id_column}" for table in one.tables} for one in STREAMS}

    assert columns_of("stream") == found
    for one in STREAMS:
        assert SEQUENCES[one.sequence]["stream_name"] == one.name
        assert SEQUENCES[one.sequence].get("negative", False) == one.negative


def test_sequences_that_the_code_names() -> None:
    """What a service has had is looked at besides, which no release does."""
    found: dict[str, set[str]] = {USER_IDS: {"users.name (numeric local parts)"}}
    for one in BY_CODE:
        found.setdefault(one.sequence, set()).add(f"{one.table}.{one.column}")
    found["application_services_txn_id_seq"].remove("application_services_state.last_txn")

    assert columns_of("code") == found


def test_all_others_are_those_of_a_column() -> None:
    """The database tells them (test_counters.py)."""
    assert {"stream", "code", "serial", "identity"} == {one["kind"] for one in SEQUENCES.values()}
