"""Which seeds the simulations run: those of ``seeds.toml``, the same ones each time.

``SYNREPL_SEEDS=N`` tries N others in their place, from ``SYNREPL_FIRST_SEED`` (1) on, as by night.
`scripts/simulate` tries any number, outside of pytest.
"""

import os
import tomllib
from pathlib import Path
from typing import Final

__all__ = ["seeds"]

_LIST: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def seeds(world: str, *, share: int = 0, shares: int = 1) -> list[int]:
    """One of so many shares of a world's seeds."""
    if count := os.environ.get("SYNREPL_SEEDS"):
        first = int(os.environ.get("SYNREPL_FIRST_SEED") or 1)
        return list(range(first, first + int(count)))[share::shares]
    listed = _LIST[world]
    which = "all" if os.environ.get("HYPOTHESIS_PROFILE") == "all" else "few"
    last = listed["long" if os.environ.get("SYNREPL_LONG") else which]
    return sorted({*range(1, last + 1), *listed["found"]})[share::shares]
