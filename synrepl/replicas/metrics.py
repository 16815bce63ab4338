"""The metrics of replicas, leases and claims."""

from collections import Counter as Counts
from collections.abc import Mapping, Sequence
from functools import partial
from math import nan
from typing import Any

from synrepl.base.metric_values import Gauge, IRegistry
from synrepl.replicas.relay.replica_registry import REPLICA_STATES
from synrepl.replicas.roles.metrics import RoleMetrics


class ReplicasMetrics:
    """The metrics of the room."""

    def __init__(self, registry: IRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.roles = RoleMetrics(registry)
        self.replicas = gauge("replicas", "Known replicas, by state.", ["state"])
        self.lease_used = gauge("lease_used_ratio", "Used share of the fullest lease; at 1 it ends.")
        self.backup_age = gauge(
            "backup_age_seconds",
            "How long ago the newest backup had everything; not a number as long as none is known.",
        )
        self.backup_age.set(nan)
        self.join_remaining = gauge("catchup_remaining_rows", "Facts that this replica lacks while joining.")

    def collect(
        self,
        replicas: Sequence[Mapping[str, Any]],
        leases: Sequence[Mapping[str, Any]],
        join: Mapping[str, Any] | None,
        backups: Sequence[Mapping[str, Any]],
    ) -> None:
        """Set the gauges by these descriptions of replicas, leases, backups, and of a join under way."""
        self.backup_age.set(min((one["age_seconds"] for one in backups), default=nan))
        states = Counts(one["state"] for one in replicas)
        for state in REPLICA_STATES:
            self.replicas.labels(state).set(states[state])
        used = [one["used"] for one in leases if one["ended"] is None]
        self.lease_used.set(max(used, default=0.0))
        self.join_remaining.set(0 if join is None else join["total"] - join["done"])
