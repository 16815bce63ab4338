"""The metrics of the role: signs of another primary."""

from synrepl.base.metric_values import Counter, IRegistry


class RoleMetrics:
    """Counts what other daemons say of a primary beside this one (`rivals.py`)."""

    def __init__(self, registry: IRegistry) -> None:
        self.claims_refused = Counter(
            "claims_refused", "Refused claims of other daemons to be primary.", ["code"], registry=registry
        )
        self.later_epochs = Counter(
            "later_epochs",
            "Refusals of replicas that know a later epoch than this primary.",
            registry=registry,
        )
