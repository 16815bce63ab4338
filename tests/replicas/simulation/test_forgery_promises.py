"""No publisher can make a promotion give up what replicas have acknowledged: seeded runs.

A seed that fails says how to see it again. All hundred: ``SYNREPL_LONG=1``."""

from collections import Counter

from tests.replicas.simulation.forgers import ForgerySimulation
from tests.simulation.seeds import seeds

FACTS = 100
"""The facts that are acknowledged in a run, on average, at least."""


def test_a_forging_publisher_loses_no_acknowledged_fact() -> None:
    """Refused while the one that acknowledged is silent; promoted with everything once both have met."""
    acknowledged, seen, tried = 0, Counter[str](), seeds("forgers")
    for seed in tried:
        run = ForgerySimulation(seed).run()
        acknowledged += len(run.acknowledged)
        seen.update(run.seen)

    assert len(tried) == seen["refused: replicas_silent"]
    assert len(tried) == seen["promoted: b"] + seen["promoted: c"]
    assert len(tried) * FACTS <= acknowledged
    assert all(seen[f"forged {stream}"] for stream in ("promises", "atomic_appends", "declarations"))
