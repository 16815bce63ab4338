"""Differences of paired measurements: the median, its interval, and whether it differs from none.

Times of a machine follow no known distribution: they have a floor and a long tail. So nothing is assumed but
that pairs are independent, and that a ratio is as likely to lie above the median as below. Then as many of n
ratios lie below the median as there are heads in n throws of a coin. An interval leaves out the k lowest and
the k highest ratios, for the largest k that the permitted error allows. For a small error and few pairs there
is none: even the one from the lowest ratio to the highest misses the median in 2 of 2**n runs.

Where many figures are compared, some interval misses by chance: of 20 at 95 %, one. A verdict permits each
figure the error of the whole run divided by the number of figures (Bonferroni). That holds however the
figures depend on each other, and figures of one process do.
"""

import math
import statistics
from collections.abc import Sequence
from itertools import count
from typing import Final, Literal

import msgspec

__all__ = ["ERROR", "Difference", "difference", "interval", "pairs_needed"]

ERROR: Final = 0.05
"""The probability that a printed interval misses the median, and that of any wrong verdict in a whole run."""


class Difference(msgspec.Struct, frozen=True):
    """How much one side of the pairs is above the other, in per cent of the other: the median.

    `low` and `high` are its 95 % interval. `verdict` is None if there are too few pairs for one.
    """

    percent: float
    low: float
    high: float
    verdict: Literal["lower", "higher", "same"] | None


def difference(ratios: Sequence[float], figures: int) -> Difference:
    """Return the difference that the ratios of all pairs show, in a run that compares so many figures.

    Raises ValueError for fewer ratios than a 95 % interval needs, which is 6.
    """
    plain, corrected = interval(ratios, ERROR), interval(ratios, ERROR / figures)
    if plain is None:
        raise ValueError(f"{len(ratios)} ratios have no interval: {pairs_needed(1)} are needed")
    verdict: Literal["lower", "higher", "same"] | None = None
    if corrected is not None:
        low, high = corrected
        verdict = "higher" if low > 1 else "lower" if high < 1 else "same"
    percent, low, high = ((ratio - 1) * 100 for ratio in (statistics.median(ratios), *plain))
    return Difference(percent, low, high, verdict)


def interval(values: Sequence[float], error: float) -> tuple[float, float] | None:
    """Return an interval that misses the median with at most this probability; None if there is none."""
    left_out, tail = -1, 0.0
    for fewer in range((len(values) + 1) // 2):
        tail += math.comb(len(values), fewer) / 2 ** len(values)
        if 2 * tail > error:
            break
        left_out = fewer
    if left_out < 0:
        return None
    ordered = sorted(values)
    return ordered[left_out], ordered[-1 - left_out]


def pairs_needed(figures: int) -> int:
    """Return the fewest pairs that allow a verdict on each of so many figures."""
    return next(pairs for pairs in count(1) if 2 * 0.5**pairs <= ERROR / figures)
