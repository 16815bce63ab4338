"""Which seeds the simulations try here.

``SYNREPL_SEEDS=N`` is their number (`scripts/test --seeds N`), ``SYNREPL_FIRST_SEED=N`` the first (1), and
``SYNREPL_LONG=1`` tries many more than by default. `scripts/simulate` tries any number, outside of pytest.
"""

import os

__all__ = ["seeds"]

_FIRST = int(os.environ.get("SYNREPL_FIRST_SEED") or 1)


def seeds(default: int, *, long: int, share: int = 0, shares: int = 1) -> range:
    """One of so many shares of the seeds."""
    count = int(os.environ.get("SYNREPL_SEEDS") or (long if os.environ.get("SYNREPL_LONG") else default))
    return range(_FIRST + share, _FIRST + count, shares)
