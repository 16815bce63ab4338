"""What ``synrepl inspect`` prints: words before the table, what was not seen, and a verdict."""

from typing import Any

import click

from synrepl.cli.options import Output
from synrepl.homeserver.commands.inspect import report_lines
from synrepl.homeserver.configuration import Homeserver
from synrepl.homeserver.findings import Finding, Unseen
from synrepl.homeserver.inspection import InspectionReport

FINDING = Finding(
    kind="federation_behind",
    process="sender1",
    since_seconds=7_500.0,
    count=1_234,
    why="it does not move",
    remedy="look at its log",
    command="synrepl inspect",
)
SEEN = {"streams": 1, "writers": 2, "announced": 3, "processes": 1}


def lines(
    *findings: Finding, seen: dict[str, int] | None = None, kind: str = "table", **rest: Any
) -> list[str]:
    """The lines of a report, without colors."""
    report = InspectionReport(
        homeserver=Homeserver(server_name="example.org", database=None, redis=None, processes=()),
        findings=findings,
        unseen=rest.pop("unseen", ()),
        seen=SEEN if seen is None else seen,
        **rest,
    )
    return [click.unstyle(line) for line in report_lines(report, Output(kind))]


def test_a_healthy_homeserver_gives_no_finding() -> None:
    assert [
        "example.org: 1 stream and 2 writers in the database, 3 heard on Redis, 1 process measured",
        "nothing is wrong",
    ] == lines()


def test_a_finding_says_since_when_and_what_to_do() -> None:
    found = lines(FINDING)

    assert ["federation_behind (sender1): it does not move", "    look at its log", ""] == found[1:4]
    assert ["federation_behind", "sender1", "2", "h", "5", "min", "1,234"] == found[5].split()
    assert len(found) == 6


def test_the_command_is_shown_when_wide() -> None:
    assert "    synrepl inspect" in lines(FINDING, kind="wide")


def test_streams_mended_by_ask_are_listed() -> None:
    found = lines(mended=[FINDING])

    assert found[1] == "mended by asking: federation_behind (sender1): it does not move"
    assert found[-1] == "nothing is wrong"


def test_notes_leave_a_homeserver_well() -> None:
    found = lines(notes=[FINDING])

    noted = ["note: federation_behind (sender1): it does not move", "    look at its log"]
    assert [*noted, "nothing is wrong"] == found[1:]
    assert (
        InspectionReport(
            homeserver=Homeserver(server_name="hs", database=None, redis=None, processes=()),
            findings=[],
            unseen=[],
            seen=SEEN,
            notes=[FINDING],
        ).exit_code
        == 0
    )


def test_unseen_streams_are_listed() -> None:
    found = lines(unseen=[Unseen(what="Redis", why="connection refused")])

    assert ["not seen: Redis: connection refused", "nothing is wrong in what was seen"] == found[1:]


def test_a_homeserver_without_any_sign_is_reported() -> None:
    found = lines(unseen=[Unseen(what="database", why="refused")], seen=dict.fromkeys(SEEN, 0))

    assert found[-1] == "nothing was seen of it"
    assert not any("nothing is wrong" in line for line in found)
