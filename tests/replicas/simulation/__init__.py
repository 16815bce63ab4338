"""Simulated worlds of replicas."""

from typing import Final

WORLDS: Final = {
    "replicas": "tests.replicas.simulation.replicas:ReplicaSimulation",
    "stalls": "tests.replicas.simulation.stalls:StallSimulation",
    "restarts": "tests.replicas.simulation.restarts:RestartSimulation",
    "disks": "tests.replicas.simulation.disks:DiskSimulation",
    "acks": "tests.replicas.simulation.acks:AcksSimulation",
    "forgers": "tests.replicas.simulation.forgers:ForgerySimulation",
}
"""What scripts/simulate runs: the module and class of each world."""
