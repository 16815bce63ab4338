"""The metrics of files."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from synrepl.base.metric_values import Gauge, IRegistry


class FilesMetrics:
    """How many files there are, and how many are missing."""

    def __init__(self, registry: IRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.stored = gauge("files_stored", "Stored files.")
        self.stored_bytes = gauge("files_stored_bytes", "Bytes of the stored files.")
        self.wanted = gauge("files_wanted", "Missing files that are queued to be fetched.")
        self.failing = gauge("files_failing", "Missing files whose downloads have failed so far.")
        self.quarantined = gauge("files_quarantined", "Damaged files in quarantine.")

    def collect(self, status: Mapping[str, Any]) -> None:
        """Set them as the status of `Files` says."""
        self.stored.set(status["stored"])
        self.stored_bytes.set(status["stored_bytes"])
        self.wanted.set(status["wanted"])
        self.failing.set(len(status["failing"]))
        self.quarantined.set(status["quarantined"])
