"""The table of power cuts."""

from pathlib import Path
from unittest.mock import patch

import pytest

from scripts import again, power
from tests.power.cuts import Cut, Failed, Tally
from tests.power.journal import Kind, Record

RECORDS = [Record(Kind.MARK)]
KEPT = Tally(cuts=2, kept=2)
LOST = Tally(cuts=2, kept=1, lost=1, failed=[Failed(Cut(1, "nothing", 7), "lost", "fact 5 is gone")])


@pytest.mark.parametrize(
    ("log", "control", "code"),
    [(KEPT, LOST, 0), (LOST, LOST, 1), (KEPT, KEPT, 1)],
    ids=["all is kept", "something is lost", "a disk that does not sync is not noticed"],
)
def test_a_store_keeps_everything_and_the_check_can_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: Tally, control: Tally, code: int
) -> None:
    with (
        patch.object(power, "record", lambda *given: RECORDS),
        patch.object(
            power, "cut_power", lambda load, records, cuts, home: log if home.name == "cuts" else control
        ),
    ):
        assert code == power.main(["log", "--cuts", "2", "--seed", "9"], tmp_path)

    rows = again.load(tmp_path, power.TABLE)
    assert [("log", 9), (power.CONTROL, 9)] == [(row["store"], row["seed"]) for row in rows]
    told = capsys.readouterr().out
    assert ("fact 5 is gone" in told) == (log is LOST)
    assert 0 == power.main(["--table"], tmp_path)
