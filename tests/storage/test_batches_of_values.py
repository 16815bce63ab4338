"""Values go to the database in batches of few sizes, so that few statements are prepared."""

import pytest

from synrepl.storage.trimming import VALUES_AT_ONCE, _in_batches


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 9, VALUES_AT_ONCE, VALUES_AT_ONCE + 1])
def test_sizes_are_powers_of_two(count: int) -> None:
    """The last value fills up; each is there."""
    batches = list(_in_batches(range(count)))

    assert set(range(count)) == {value for batch in batches for value in batch}
    assert all(len(batch).bit_count() == 1 for batch in batches)
    assert sum(map(len, batches)) < max(2 * count, 1)
