"""Rows of files: valid rows, and their receivers."""

import pytest

from synrepl.errors import RowError
from synrepl.streams.catalog import FILES, File
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect

SHA = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "row",
    [
        ["create", "a/b.tar.gz", SHA, 5],
        ["create", "ü b", SHA, 0],
        ["modify", "x" * 1_024, SHA, 2**63 - 1],
        ["delete", "x", None, None],
    ],
)
def test_good_rows(row: list[object]) -> None:
    """The key is the name: the last row of a name counts."""
    read = FILES.decode(FILES.canonical(row), NEWEST)

    assert [read.action, read.name, read.sha256, read.size] == row
    assert FILES.key is not None
    assert FILES.key(read) == (row[1],)


@pytest.mark.parametrize(
    "row",
    [
        ["create", "x", None, 5],
        ["create", "x", SHA, None],
        ["modify", "x", None, None],
        ["delete", "x", SHA, 5],
        ["delete", "x", None, 5],
        ["create", "x", SHA.upper(), 5],
        ["create", "x", SHA[1:], 5],
        ["create", "x", SHA + "0", 5],
        ["create", "x", SHA + "\n", 5],
        ["create", "x", SHA, -1],
        ["create", "x", SHA, 2**63],
        ["create", "x", SHA, 1.5],
        ["create", "x", SHA, True],
        ["create", "", SHA, 5],
        ["create", "x" * 1_025, SHA, 5],
        ["rename", "x", SHA, 5],
        ["create", "x", SHA],
    ],
)
def test_bad_rows(row: list[object]) -> None:
    """They are not stored: a file without content that any source could supply would be missing forever."""
    with pytest.raises(RowError):
        FILES.canonical(row)


@pytest.mark.parametrize("action", ["create", "modify", "delete"])
def test_new_facts_do_not_name_what_rows_of_other_streams_refer_to(action: str) -> None:
    """Older logs may have such a row, which is read as any other."""
    content = [None, None] if action == "delete" else [SHA, 5]
    row = [action, '\x00\x01packages ["hello","1.0"] archive', *content]

    with pytest.raises(RowError, match="reserved") as refused:
        FILES.canonical_fact([["delete", "x", None, None], row])

    assert refused.value.index == 1
    assert FILES.decode(FILES.canonical(row), NEWEST).name == row[1]


@pytest.mark.parametrize("dialect", [LEGACY, MIDDLE, CURRENT, NEWEST, Dialect.parse("1.200")])
def test_no_release_of_synapse_receives_them(dialect: Dialect) -> None:
    """A real peer disconnects at a stream that it does not know."""
    row = FILES.encode(File("delete", "x", None, None))  # type: ignore[call-arg]

    assert FILES.project(row, dialect) is None
    assert FILES.project(row, NATIVE) == row
