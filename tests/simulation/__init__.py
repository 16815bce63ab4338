"""Simulated worlds of the core."""

from typing import Final

WORLDS: Final = {
    "workers": "tests.simulation.workers:Simulation",
    "broker": "tests.simulation.broker:BrokerSimulation",
}
"""What scripts/simulate runs: the module and class of each world."""
