"""The metrics of the watch of a homeserver."""

from functools import partial

from synrepl.base.metric_values import Gauge, IRegistry


class WatchMetrics:
    """What the watch finds, as metrics."""

    def __init__(self, registry: IRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.unannounced_rows = gauge(
            "stream_unannounced_rows",
            "Ids that a writer of the watched homeserver (--homeserver) stored and never announced on Redis.",
            ["stream", "writer"],
        )
        self.unannounced_seconds = gauge(
            "stream_unannounced_seconds",
            "Seconds since a writer of the watched homeserver stores what it does not announce.",
            ["stream", "writer"],
        )
        self.homeserver_lag_rows = gauge(
            "homeserver_lag_rows",
            "Ids that a writer or process of the watched homeserver is behind, and the kind of finding that"
            " says why.",
            ["stream", "writer", "process", "because"],
        )
        self.homeserver_findings = gauge(
            "homeserver_findings", "What is wrong in the watched homeserver, by kind of finding.", ["kind"]
        )
