"""Measurements of an archive: the data of a report, as plain values."""

from typing import Any

import msgspec

from synrepl.pipeline.archive.manifest import Arrival
from synrepl.pipeline.report.bins import Bins
from synrepl.pipeline.report.chains import ChainBreak
from synrepl.pipeline.report.coverage import Coverage
from synrepl.pipeline.report.daemon_status import DaemonStatus
from synrepl.pipeline.report.invalidations import Invalidations
from synrepl.pipeline.report.writer_lag import WriterLag

__all__ = ["Measurements"]

Row = dict[str, Any]


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `counts`, `chains`, `writer_lag`, `invalidations` and `daemon_status`.

    Without `covers` the archive has no facts. `daemon` is None unless a daemon was requested.
    """

    position: str
    top: int
    covers: Coverage | None = None
    daemon: DaemonStatus | None = None
    bins: Bins = Bins(0, 1, 1)
    totals: list[Row] = []
    peaks: dict[tuple[str | None, str | None], tuple[int, int]] = {}
    over_time: list[Row] = []
    hours: list[Row] = []
    hours_width: int = 3600
    sizes: list[Row] = []
    spread: list[Row] = []
    largest: list[Row] = []
    arrivals: list[Arrival] = []
    standing: list[WriterLag] = []
    broken: list[ChainBreak] = []
    doubles: dict[str, int] = {}
    voided: dict[int, int] = {}
    invalidations: Invalidations | None = None
    minutes: Bins = Bins(0, 60, 1)

    def total(self, column: str) -> int:
        """Return a total of all writers of all streams."""
        return sum(row[column] for row in self.totals)

    def writers(self) -> list[str]:
        """Return the writers with facts, by number of rows."""
        return self._by_rows("writer")

    def streams(self) -> list[str]:
        """Return the streams with facts, by number of rows."""
        return self._by_rows("stream")

    def _by_rows(self, kind: str) -> list[str]:
        rows: dict[str, int] = {}
        for row in self.totals:
            rows[row[kind]] = rows.get(row[kind], 0) + row["rows"]
        return sorted(rows, key=lambda name: (-rows[name], name))
