"""Flipped bits of the log. `scripts/power --bits` flips more of them, in larger logs."""

from pathlib import Path

import pytest

from tests.power.bits import draw_flips, flip_bits
from tests.power.disk import State
from tests.power.served_log import ServedLog, ServedTrimmedLog


class SmallLog(ServedLog):
    """A log of some pages."""

    STEPS = 60


class SmallTrimmedLog(ServedTrimmedLog):
    """The same, trimmed and copied."""

    STEPS = 60


@pytest.mark.parametrize("while_open", [False, True])
@pytest.mark.parametrize("store", [SmallLog, SmallTrimmedLog])
def test_no_flipped_bit_is_served_as_right(tmp_path: Path, store: type[ServedLog], while_open: bool) -> None:
    """It is refused, or it is in what nothing is read of."""
    whole = store(str(tmp_path / "made"))
    whole.run(lambda said: None)
    state: State = {path.name: path.read_bytes() for path in whole.position.iterdir()}

    flips = draw_flips(state, store.KINDS["log" if store is SmallLog else "trimmed log"], 40, 1)
    tally = flip_bits(store, state, flips, tmp_path, while_open=while_open)

    assert [] == tally.failed
    assert tally.refused > 10
